"""The product taken out of a cluster again."""
