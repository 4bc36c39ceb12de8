"""One cluster: conditions, boot ids and agent liveness become the taint."""
