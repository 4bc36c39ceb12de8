"""Tests, and the rig that they run on."""
