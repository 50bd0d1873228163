"""Other code in the process finds the libraries that onnxtile uses as they were, whatever verb has run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_no_verb_changes_a_library_for_others(shallow: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.libraries_around", str(shallow)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    changed = json.loads(done.stdout.splitlines()[-1])
    assert len(changed) > 5
    assert {name: names for name, names in changed.items() if names} == {}
