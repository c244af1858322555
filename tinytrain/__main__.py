"""``python -m tinytrain``. The commands are in another module, from which other processes can import them."""

import sys
import warnings

from tinytrain.commands import main

if __name__ == "__main__":
    warnings.formatwarning = lambda message, *_, **__: f"tinytrain: warning: {message}\n"
    sys.exit(main())
