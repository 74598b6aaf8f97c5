"""Downloads from a server on the loopback address: what arrives is whole, and nothing else is ever read."""

import hashlib
import io
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from support.files import assert_rows, usage_error, write_stl, write_tiny
from support.processes import started

from fedvg_jax import data, prepare
from fedvg_jax.data import datasets, downloads
from fedvg_jax.data.readers import hugging_face

RNG = np.random.default_rng(5)


class Server:
    """Serves one file per path; the first `num_broken` answers are cut off, and count in `requests`."""

    def __init__(self):
        self.files, self.num_broken, self.requests, self.pause = {}, 0, [], 0.0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.requests.append(self.path)
                content = server.files.get(self.path, b"")
                self.send_response(200 if content else 404)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if server.num_broken:
                    server.num_broken -= 1
                    content = content[: len(content) // 2]
                for first in range(0, len(content), 1024):
                    time.sleep(server.pause)
                    self.wfile.write(content[first : first + 1024])

            def log_message(self, *arguments):
                """Prints nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def offer(self, file, content, **fields):
        """Serves a file, and returns what the table of downloads says of it."""
        self.files[f"/{file}"] = content
        url = f"http://127.0.0.1:{self.http.server_address[1]}/{file}"
        return downloads.Published(url, hashlib.md5(content).hexdigest(), **fields)


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.http.shutdown()


def medmnist():
    content = io.BytesIO()
    x, y = RNG.integers(0, 256, (30, 28, 28), np.uint8), RNG.integers(0, 7, (30, 1))
    np.savez(content, train_images=x, train_labels=y)
    return content.getvalue()


@pytest.fixture
def organs(server, monkeypatch):
    """The file of OrganAMNIST on the server, in place of its address in the table."""
    content = medmnist()
    offered = server.offer("organamnist.npz", content)
    monkeypatch.setitem(downloads.FILES, "organamnist.npz", offered)
    return content


@pytest.fixture
def stl(server, monkeypatch, tmp_path):
    """The archive of STL-10 on the server, in place of its address in the table; returns its (x, y)."""
    return offer_archive(server, monkeypatch, tmp_path / "made", "stl10", "gztar", write_stl)


def offer_archive(server, monkeypatch, made, name, form, write):
    """Serves the archive of a set, in place of its address in the table; returns its (x, y)."""
    published = downloads.FILES[name]
    fields = {"folder": published.folder, "left_out": published.left_out}
    pair = write(made / published.folder)
    for unused in published.left_out:
        (made / published.folder / unused).write_bytes(b"left out")
    archive = shutil.make_archive(str(made / "archive"), form, made, published.folder)
    offered = server.offer(published.file, Path(archive).read_bytes(), **fields)
    monkeypatch.setitem(downloads.FILES, name, offered)
    return pair


def left_in(folder):
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_every_file_has_an_address_and_a_checksum():
    files = [published.file for published in downloads.FILES.values()]
    assert len({*files}) == len(files)
    assert {"cifar-10-python.tar.gz", "dermamnist_64.npz"} < {*files}
    assert all(len(bytes.fromhex(published.md5)) == 16 for published in downloads.FILES.values())
    of_files = {re.split(r"_\d|\.npz", name)[0] for name in downloads.FILES}
    assert of_files == {name for name, source in data.SOURCES.items() if source.is_published}


def test_prepare_downloads_to_the_cache_where_runs_look(organs, server, tmp_path, capsys):
    flags = ["--cache-dir", str(tmp_path), "--clients", "2", "--min-samples", "1", "--alpha", "9"]
    with usage_error("--download"):
        data.load("organamnist", None, tmp_path / "data")
    for _ in range(2):  # the second call finds the file
        assert prepare.main(["organamnist", "--download", *flags]) == 0
    assert "organamnist: 30 images" in capsys.readouterr().out
    assert len(data.load("organamnist", None, tmp_path / "data").y) == 30
    assert server.requests == ["/organamnist.npz"]


def test_a_file_that_is_cut_off_is_fetched_again(organs, server, tmp_path):
    server.num_broken = 1
    downloads.fetch("organamnist", tmp_path)
    assert (tmp_path / "organamnist.npz").read_bytes() == organs
    assert len(server.requests) == 2 and left_in(tmp_path) == ["organamnist.npz"]


@pytest.mark.parametrize(
    ("num_broken", "content"), [(99, b"cut off"), (0, b"another checksum"), (0, b"")]
)
def test_what_does_not_arrive_whole_leaves_nothing(organs, server, tmp_path, num_broken, content):
    server.num_broken, server.files["/organamnist.npz"] = num_broken, content
    with usage_error("organamnist.npz"):
        downloads.fetch("organamnist", tmp_path)
    assert len(server.requests) == 1 + downloads.RETRIES and not left_in(tmp_path)


@pytest.mark.parametrize(
    ("name", "size"), [("organamnist", None), ("dermamnist", (28, 28)), ("dermamnist", (64, 64))]
)
def test_the_command_that_an_error_names_brings_the_missing_file(
    server, tmp_path, monkeypatch, name, size
):
    for file in (f"{name}.npz", f"{name}_64.npz", f"{name}_224.npz"):
        monkeypatch.setitem(downloads.FILES, file, server.offer(file, medmnist()))
    # a file of another size is no help
    downloads.fetch(name, tmp_path / "data" / "downloads" / name, (224, 224) if size else (64, 64))
    with usage_error("--download") as mistake:
        data.load(name, None, tmp_path / "data", size=size)
    command = re.search(r"fedvg_jax\.prepare (.*?),", str(mistake.value))[1]
    flags = f"--cache-dir {tmp_path} --clients 2 --min-samples 1 --alpha 9"
    assert prepare.main([*shlex.split(command), *flags.split()]) == 0
    assert len(data.load(name, None, tmp_path / "data", size=size).y) == 30


def stop_a_download(number, server, folder, monkeypatch):
    """Ends the download of STL-10 to a folder by a signal; returns the exit code and the lines of standard error.

    The address of STL-10 is http, so that a proxy can stand in place of its host.
    """
    url = downloads.FILES["stl10"].url
    server.files[url], server.pause = bytes(2**20), 0.01
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.http.server_address[1]}")
    command = [sys.executable, "-m", "fedvg_jax.prepare", "stl10", "--download", "--data-dir"]
    with started([*command, str(folder)]) as process:
        while not server.requests and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert server.requests == [url]
    return process.returncode, errors.splitlines()


def test_ctrl_c_ends_a_download_and_leaves_nothing(server, tmp_path, monkeypatch):
    code, errors = stop_a_download(signal.SIGINT, server, tmp_path / "in", monkeypatch)
    assert code == 130 and len(errors) == 1 and not left_in(tmp_path / "in")


def test_the_next_download_removes_what_a_killed_one_has_left(
    organs, server, tmp_path, monkeypatch
):
    stop_a_download(signal.SIGKILL, server, tmp_path / "in", monkeypatch)
    assert len(left_in(tmp_path / "in")) == 1
    monkeypatch.delenv("http_proxy")
    server.pause = 0
    downloads.fetch("organamnist", tmp_path / "in")
    assert left_in(tmp_path / "in") == ["organamnist.npz"]


def test_downloads_at_once_all_succeed(organs, stl, server, tmp_path):
    server.pause = 0.01
    with ThreadPoolExecutor() as pool:
        for name in ("organamnist", "stl10"):
            for done in [pool.submit(downloads.fetch, name, tmp_path / "in") for _ in range(2)]:
                done.result(timeout=60)
    assert len(server.requests) == 4
    assert {*left_in(tmp_path / "in")} == {"organamnist.npz", "stl10_binary"}
    assert (tmp_path / "in" / "organamnist.npz").read_bytes() == organs
    assert len(data.load("stl10", tmp_path / "in").y)


def test_others_may_read_what_is_downloaded(organs, stl, tmp_path):
    usual = os.umask(0o022)
    try:
        for name in ("organamnist", "stl10"):
            downloads.fetch(name, tmp_path / "in")
    finally:
        os.umask(usual)
    paths = [*(tmp_path / "in").rglob("*")]
    assert len(paths) > 4
    assert all(path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644) for path in paths)


def test_a_file_of_the_user_is_not_replaced(organs, tmp_path):
    (tmp_path / "organamnist.npz").write_bytes(b"another version")
    with usage_error("organamnist.npz", "checksum"):
        downloads.fetch("organamnist", tmp_path)
    assert (tmp_path / "organamnist.npz").read_bytes() == b"another version"


def test_a_set_with_all_files_is_not_downloaded_and_one_that_lacks_some_is_not_replaced(
    stl, server, tmp_path
):
    downloads.fetch("stl10", tmp_path / "in")
    downloads.fetch("stl10", tmp_path / "in")
    np.savez(tmp_path / "cifar10.npz", x=np.zeros((2, 32, 32, 3), np.uint8), y=[0, 1])
    downloads.fetch("cifar10", tmp_path)
    assert len(server.requests) == 1
    (tmp_path / "in" / "stl10_binary" / "test_y.bin").unlink()
    with usage_error("stl10_binary", "move it"):
        downloads.fetch("stl10", tmp_path / "in")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("name", "form", "write"), [("stl10", "gztar", write_stl), ("tinyimagenet", "zip", write_tiny)]
)
def test_an_archive_is_unpacked_once_it_is_verified(
    server, tmp_path, monkeypatch, name, form, write
):
    x, y = offer_archive(server, monkeypatch, tmp_path / "made", name, form, write)
    downloads.fetch(name, tmp_path / "in")
    (folder,) = (tmp_path / "in").iterdir()
    assert not {*left_in(folder)} & {*downloads.FILES[name].left_out}
    assert_rows(data.load(name, tmp_path / "in"), x, y)


@pytest.mark.parametrize(("name", "size"), [("covid19", None), ("organamnist", (30, 30))])
def test_a_set_without_a_published_file_is_refused(tmp_path, name, size):
    with usage_error(name):
        downloads.fetch(name, tmp_path, size)


# --- sets of the Hugging Face hub


def hub_set(folder):
    """Writes a set of texts as the hub has it; the library takes a folder OWNER/NAME in place of the hub."""
    library = pytest.importorskip("datasets", reason="needs the hf extra")
    rows = {
        "text": ["one two", "two three", "one two", ""],
        "label": ["a", "b", "a", "b"],
        "source": ["x", "y", "y", "x"],
    }
    folder.mkdir(parents=True)
    library.Dataset.from_dict(rows).to_parquet(folder / "train-00000-of-00001.parquet")


def test_a_set_of_the_hub_is_read_offline_after_its_download(tmp_path, monkeypatch):
    hub_set(tmp_path / "hub" / "OWNER" / "NAME")
    cache, name = tmp_path / "cache", "hf:OWNER/NAME"
    monkeypatch.chdir(tmp_path / "hub")
    downloads.fetch_hub_set("OWNER/NAME", datasets.download_folder(name, None, cache))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    columns = {"group": "source", "input": "text"}
    for _ in range(2):  # from the files, and from the cache
        arrays = data.load(name, None, cache, columns=columns)
        assert arrays.name == "OWNER--NAME" and arrays.class_names == ("a", "b")
        assert arrays.y.tolist() == [0, 1, 0, 1] and arrays.groups.tolist() == [0, 1, 1, 0]
    x = np.asarray(arrays.x, np.float64)
    assert x.shape == (4, hugging_face.HASHES) and not x[3].any()
    np.testing.assert_array_equal(x[0], x[2])
    np.testing.assert_allclose(np.linalg.norm(x[:3], axis=1), 1, rtol=1e-3)
    np.testing.assert_allclose(np.abs(x[0] @ x[1]), 0.5, rtol=1e-3)  # one word of two is shared


CONFIGURATIONS = """---
configs:
- {config_name: one, data_files: one.parquet}
- {config_name: two, data_files: two.parquet}
- {config_name: both, data_files: "*.parquet", default: true}
---
"""


@pytest.mark.parametrize("is_cached", [True, False])
def test_configurations_of_a_set_of_the_hub_are_sets_of_their_own(tmp_path, monkeypatch, is_cached):
    hub = tmp_path / "hub" / "OWNER" / "NAME"
    hub_set(hub)
    (hub / "train-00000-of-00001.parquet").rename(hub / "one.parquet")
    shutil.copy(hub / "one.parquet", hub / "two.parquet")
    (hub / "README.md").write_text(CONFIGURATIONS)
    place = (None, tmp_path / "in") if is_cached else (tmp_path / "in", None)

    def fetch(name):
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path / "hub")
            downloads.fetch_hub_set(name, datasets.download_folder(f"hf:{name}", *place))

    def num_rows(name):
        return len(data.load(f"hf:{name}", *place, columns={"input": "text"}).y)

    fetch("OWNER/NAME/one")
    fetch("OWNER/NAME/two")
    with usage_error("hf:OWNER/NAME", "--download"):
        num_rows("OWNER/NAME")
    fetch("OWNER/NAME")
    sizes = [num_rows(f"OWNER/NAME{of}") for of in ("", "/one", "/two")]
    assert sizes == [8, 4, 4]


def test_a_failed_download_of_a_hub_set_is_no_line_but_its_error(tmp_path, monkeypatch, capfd):
    library = pytest.importorskip("datasets", reason="needs the hf extra")

    def fail(*arguments, **options):
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s [Retry 1/5].")
        raise ConnectionError("no network")

    monkeypatch.setattr(library, "load_dataset", fail)
    with usage_error("hf:OWNER/NAME", "no network"):
        downloads.fetch_hub_set("OWNER/NAME", tmp_path / "in")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["OWNER", "OWNER/", "a/b/c/d"])
def test_a_name_that_the_hub_cannot_have_is_refused_whatever_is_there(tmp_path, name):
    with usage_error(f"hf:{name}", "hf:OWNER/NAME"):
        downloads.fetch_hub_set(name, tmp_path)


def test_a_set_that_the_hub_does_not_bring_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="needs the hf extra")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with usage_error("hf:OWNER/NAME"):
        downloads.fetch_hub_set("OWNER/NAME", tmp_path / "in")
    assert not left_in(tmp_path)
