"""Sessions and stores as files: exports, backups, bundles."""
