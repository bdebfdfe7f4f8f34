"""Is there a Java that Spark can run on? Asked before a JVM is started, so that the answer is no stack trace."""

import os
import re
import shutil
import subprocess

from barrier_runtime.state.errors import InvalidJob

NEEDED = 17
_REMEDY = (
    f"Spark needs Java {NEEDED} or newer: install it (Debian/Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or point JAVA_HOME at it"
)


def check_java() -> int:
    """The major version of the Java that Spark will use. Raises `InvalidJob` when it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        place = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise InvalidJob(f"{place}. {_REMEDY}")
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidJob(f"{java} cannot be run ({error}). {_REMEDY}") from error
    found = re.search(r'version "(\d+)(?:\.(\d+))?', printed.stderr + printed.stdout)
    if found is None:
        raise InvalidJob(f"{java} does not tell its version. {_REMEDY}")
    major = int(found.group(1))
    if major == 1 and found.group(2):
        major = int(found.group(2))  # "1.8.0"
    if major < NEEDED:
        raise InvalidJob(f"{java} is version {major}. {_REMEDY}")
    return major
