"""The log on disk: keys, rows and indexes, and the LMDB environments that hold them."""
