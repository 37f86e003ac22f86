"""The store of commits: opened by `lmdb`, read through `read.view`, described by `base`."""
