"""Directories with secrets: private, and removed with their driver, also a killed one; others' stay untouched."""

import os
import signal
import subprocess
import sys

import pytest

from barrier_runtime.coordinator.client.private_directory import (
    PrivateDirectory,
    coordinators_here,
    remove_what_the_killed_left,
)
from barrier_runtime.coordinator.client.trust import Trust

PREFIX = "barrier-runtime-test-"
DRIVER = f"""
import sys
from pathlib import Path
from barrier_runtime.coordinator.client.private_directory import PrivateDirectory
mine = PrivateDirectory({PREFIX!r}, Path(sys.argv[1]))
print(mine.path, flush=True)
sys.stdin.read()
"""


def driver(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def end(process):
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def test_it_is_private_and_goes_with_its_contents(tmp_path):
    """J7"""
    directory = PrivateDirectory(PREFIX, tmp_path)
    (directory.path / "driver.token").write_text("secret")
    assert directory.path.stat().st_mode & 0o777 == 0o700
    directory.remove()
    directory.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_next_driver_removes_the_directory_of_a_killed_but_not_of_a_living_driver(tmp_path):
    """J7"""
    killed, left = driver(tmp_path)
    living, kept = driver(tmp_path)
    try:
        end(killed)
        mine = PrivateDirectory(PREFIX, tmp_path)
        assert {str(entry) for entry in tmp_path.iterdir()} == {kept, str(mine.path)}
        assert left != kept
    finally:
        end(living)


def test_links_and_directories_that_are_just_being_made_are_left_alone(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "life.lock").touch()
    link = tmp_path / f"{PREFIX}link"
    link.symlink_to(elsewhere)
    new = tmp_path / f"{PREFIX}new"
    new.mkdir()
    remove_what_the_killed_left(PREFIX, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([elsewhere, link, new])
    assert (elsewhere / "life.lock").exists()


@pytest.mark.parametrize("certificate", [None, "node-1.pem"])
def test_an_address_has_a_third_line_only_for_a_certificate(tmp_path, certificate):
    directory = PrivateDirectory(parent=tmp_path)
    file = certificate and tmp_path / certificate
    directory.announce("https://127.0.0.1:7070", tmp_path / "daemon.token", file)
    lines = (directory.path / "address").read_text().splitlines()
    assert lines == ["https://127.0.0.1:7070", str(tmp_path / "daemon.token"), *([str(file)] if file else [])]
    [found] = coordinators_here(tmp_path)
    assert (found.url, found.token_file) == ("https://127.0.0.1:7070", tmp_path / "daemon.token")
    assert found.trust == Trust(certificate=str(file or ""))
    directory.remove()
