"""Hosts and I/O: everything that opens, reads and waits; the command line."""
