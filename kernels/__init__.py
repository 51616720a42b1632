"""Bytes: what a block looks like in memory and how it is written, read and compared."""
