"""Rung: whether drivers, device nodes and ports are in a state that can carry RDMA."""
