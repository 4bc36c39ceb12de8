"""Tests of the agent and the gate, in the folders of what they test."""
