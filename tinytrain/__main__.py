"""``python -m tinytrain``. The commands are in another module, from which other processes can import them."""

import os
import sys
import warnings

from tinytrain.commands.main import main
from tinytrain.distributed import under_torchrun

if __name__ == "__main__":
    warnings.formatwarning = lambda message, *_, **__: f"tinytrain: warning: {message}\n"
    status = main()
    if under_torchrun():  # Gloo's threads may outlive their group, and the end of the interpreter aborts on them
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
