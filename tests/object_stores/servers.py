"""Object stores on a free port of this machine: real servers, each stopped by the id of its process."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY, SECRET, REGION = "tester", "tester-secret", "us-east-1"
BUCKET = "lake"
HOST = "127.0.0.1"
START_SECONDS = 60
# Where `make test-s3` installs servers that are not on PyPI.
TOOLS = Path(__file__).parents[2] / ".tools" / "stores"


@dataclass(frozen=True)
class Server:
    """A running object store with an empty bucket, and the environment in which clients find it."""

    name: str
    url: str
    port: int
    environment: dict[str, str]

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"


class MissingServerError(Exception):
    """The program of a server is not installed."""


@contextlib.contextmanager
def run_seaweedfs(folder: Path) -> Iterator[Server]:
    """Run SeaweedFS: strict conditional writes, and errors in words of its own."""
    program = Path(sys.executable).with_name("weed")
    if not program.exists():
        raise MissingServerError("SeaweedFS is missing: run `make setup`")
    identity = {"name": KEY, "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    parts = ("master", "volume", "filer", "s3")
    ports = find_free_ports(2 * len(parts))
    named = dict(zip([f"{part}.port{kind}" for part in parts for kind in ("", ".grpc")], ports, strict=True))
    command = [
        *(str(program), "server", "-filer", "-s3", f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}"),
        # Each bucket takes several volumes.
        *("-volume.max=1000", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
        *("-s3.port.lance=0", "-s3.port.iceberg=0", f"-s3.config={folder}/s3.json"),
        *(f"-{name}={port}" for name, port in named.items()),
    ]
    with run_process(command, folder, named["s3.port"]) as port:
        yield make_s3_server("seaweedfs", port)


@contextlib.contextmanager
def run_versitygw(folder: Path) -> Iterator[Server]:
    """Run versitygw, S3 over a folder."""
    program = TOOLS / "versitygw"
    if not program.exists():
        raise MissingServerError("versitygw is missing: `make test-s3` installs it where Go is")
    (folder / "root").mkdir()
    (port,) = find_free_ports(1)
    command = [str(program), "--port", f"{HOST}:{port}", "--quiet", "posix", str(folder / "root")]
    with run_process(command, folder, port, ROOT_ACCESS_KEY=KEY, ROOT_SECRET_KEY=SECRET):
        yield make_s3_server("versitygw", port)


@contextlib.contextmanager
def run_azurite(folder: Path) -> Iterator[Server]:
    """Run Azurite, Microsoft's emulator of Azure's blobs."""
    program = TOOLS / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        raise MissingServerError("Azurite is missing: `make test-s3` installs it where npm is")
    (port,) = find_free_ports(1)
    # The emulator's account, which its documentation publishes.
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    endpoint = f"http://{HOST}:{port}/devstoreaccount1"
    text = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};BlobEndpoint={endpoint};"
    command = [str(program), "--blobHost", HOST, "--blobPort", str(port), "--location", str(folder), "--silent"]
    with run_process([*command, "--skipApiVersionCheck", "--disableTelemetry"], folder, port):
        from azure.storage.blob import BlobServiceClient  # noqa: PLC0415  slow to import

        with BlobServiceClient.from_connection_string(text) as client:
            client.create_container(BUCKET)
        yield Server("azurite", f"abfs://{BUCKET}", port, {"AZURE_STORAGE_CONNECTION_STRING": text})


@contextlib.contextmanager
def run_fake_gcs(folder: Path) -> Iterator[Server]:
    """Run fake-gcs-server, which has the interface of Google Cloud Storage."""
    program = TOOLS / "fake-gcs-server"
    if not program.exists():
        raise MissingServerError("fake-gcs-server is missing: `make test-s3` installs it where Go is")
    (port,) = find_free_ports(1)
    (folder / "root" / BUCKET).mkdir(parents=True)
    endpoint = f"http://{HOST}:{port}"
    command = [str(program), "-scheme", "http", "-host", HOST, "-port", str(port), "-public-host", f"{HOST}:{port}"]
    command += ["-backend", "memory", "-data", str(folder / "root"), "-external-url", endpoint, "-log-level", "error"]
    with run_process(command, folder, port):
        # Without the second, gcsfs asks Google by gRPC what kind of bucket it is.
        environment = {"STORAGE_EMULATOR_HOST": endpoint, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        environment |= {"FSSPEC_GS_TOKEN": "anon", "FSSPEC_GCS_TOKEN": "anon"}
        yield Server("fake-gcs-server", f"gs://{BUCKET}", port, environment)


RUNNERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Server]]] = {
    "seaweedfs": run_seaweedfs,
    "versitygw": run_versitygw,
    "azurite": run_azurite,
    "fake-gcs-server": run_fake_gcs,
}


def make_s3_server(name: str, port: int) -> Server:
    """Describe a server of S3, and create its bucket."""
    endpoint = f"http://{HOST}:{port}"
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": REGION,
    }
    create_bucket(endpoint)
    return Server(name, f"s3://{BUCKET}", port, environment)


def create_bucket(endpoint: str) -> None:
    import botocore.session  # noqa: PLC0415  slow to import

    session = botocore.session.get_session()
    client = session.create_client(
        "s3", REGION, endpoint_url=endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()


@contextlib.contextmanager
def run_process(command: list[str], folder: Path, port: int, **environment: str) -> Iterator[int]:
    """Run a server until the block ends; yields its port once it answers."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
        )
        try:
            _wait_until_ready(process, folder, port)
            yield port
        finally:
            # Some take long to end in order, and nothing of theirs is kept.
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def find_free_ports(count: int) -> list[int]:
    """Find ports that nobody uses now."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _wait_until_ready(process: subprocess.Popen[bytes], folder: Path, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
        try:
            connection.request("GET", "/")
            if connection.getresponse().status < 500:
                return
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    ended = "has not started" if process.poll() is None else f"ended with status {process.returncode}"
    raise AssertionError(f"{process.args!r} {ended}:\n{(folder / 'log').read_text(errors='replace')[-2000:]}")
