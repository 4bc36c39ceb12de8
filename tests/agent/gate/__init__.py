"""The gate, against a real API server wherever one has a say."""
