"""Where commits are kept: the contract in `base`, the engine in `lmdb`."""
