"""The code of the session wire is what its .proto says."""

import subprocess
import sys
from pathlib import Path

import ganglion

SOURCE = Path(ganglion.__file__).parent.parent
PROTO = "ganglion/wire/salience/salience.proto"


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(SOURCE)),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO),
        ],
        check=True,
        timeout=60,
    )
    for suffix in ("_pb2.py", "_pb2.pyi"):
        name = PROTO.removesuffix(".proto") + suffix
        assert (tmp_path / name).read_bytes() == (SOURCE / name).read_bytes(), "run `make proto`"
