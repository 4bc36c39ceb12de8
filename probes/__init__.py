"""What a machine's fabric can do, found out by doing it. Knows hardware, nothing of Kubernetes."""
