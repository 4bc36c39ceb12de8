"""Takes everything of the product out of a cluster again, and nothing else."""
