"""A running node whose config file loses its keys, or is gone, when it is told to read it again."""

import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from commands import GANGLION, fresh_environment

from support.waiting import wait_until


@pytest.mark.parametrize("command", [("serve", "--engine", "echo", "--no-grpc"), ("gateway", "--no-grpc")])
def test_a_file_that_lost_its_keys_or_is_gone_opens_nothing(tmp_path: Path, command: tuple[str, ...]) -> None:
    environment = fresh_environment(tmp_path)
    config, log = tmp_path / "home" / "config.toml", tmp_path / "log"
    config.parent.mkdir(parents=True)
    config.write_text('[server]\napi_keys = ["first"]\n')
    with log.open("w") as errors:
        process = subprocess.Popen([*GANGLION, *command, "--port", "0"], env=environment, stderr=errors)
    try:
        wait_until(lambda: " listens on " in log.read_text())
        url = log.read_text().partition(" listens on ")[2].split()[0]
        with httpx.Client(base_url=url) as http:

            def statuses() -> list[int]:
                keyed = {"authorization": "Bearer first"}
                return [http.get("/v1/models", headers=headers).status_code for headers in ({}, keyed)]

            assert statuses() == [401, 200]
            for times, change in enumerate((lambda: config.write_text("[server]\n"), config.unlink), start=1):
                change()
                process.send_signal(signal.SIGHUP)
                wait_until(lambda times=times: log.read_text().count("was not reloaded") == times)
                assert statuses() == [401, 200]
        assert "no key any more" in log.read_text()
        assert "could not be read" in log.read_text()
    finally:
        process.terminate()
        process.wait(20)
