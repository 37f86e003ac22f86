"""`python -m turnlog`."""

import sys

from turnlog.cli.main import main

sys.exit(main())
