"""Everything that speaks to the API server. The only folder that imports kubernetes or urllib3."""
