"""What is installed: as a real API server takes it, and as the product's own code reads it."""
