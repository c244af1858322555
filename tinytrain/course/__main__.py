"""``python -m tinytrain.course notebooks [00 …]`` runs notebooks and stores their outputs and the README's map.

``python -m tinytrain.course claims`` builds ``docs/claims.md`` from the outputs that are stored, and makes the
README's map and the made cells of all notebooks anew. It runs none of them.

``python -m tinytrain.course laws my_module:factory`` (or a file) runs the laws of training on a trainer of one's own.
"""

import argparse
import sys
from pathlib import Path

from tinytrain.course.claims_page import claims_page
from tinytrain.course.notebooks import refresh_all, run_all
from tinytrain.course.series import update_readme


def main() -> None:
    """Run one command from the repository's root."""
    parser = argparse.ArgumentParser(prog="python -m tinytrain.course", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    notebooks = commands.add_parser("notebooks", help="run notebooks in fresh kernels and store their outputs")
    notebooks.add_argument("names", nargs="*", help="beginnings of file names, such as 00; all by default")
    commands.add_parser("claims", help="build docs/claims.md from the stored outputs, and make navigation anew")
    laws = commands.add_parser("laws", help="run the laws of training on a trainer of your own, from any folder")
    laws.add_argument("trainer", help="module, module:factory, file.py or file.py:factory")
    arguments = parser.parse_args()
    if arguments.command == "laws":
        from tinytrain.course.laws.court import main as judge

        sys.exit(judge(arguments.trainer))
    folder = Path("notebooks")
    if not folder.is_dir():
        parser.error(f"no folder {folder}/ here: call this from the repository's root")
    update_readme(Path("README.md"), folder)
    if arguments.command == "notebooks":
        run_all(folder, arguments.names)
    refresh_all(folder)
    Path("docs/claims.md").write_text(claims_page(folder), encoding="utf-8")


if __name__ == "__main__":
    main()
