from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dartree_core.bundles import hub
from dartree_core.errors import BundleError, CheckpointError
from tests.core import hub_server
from tests.core.hub_server import COMMIT, Hub

CHECKPOINTS = Path(__file__).parents[1] / "conformance" / "data" / "checkpoints"
REPO = "someone/tiny"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with hub_server.serve() as running:
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        running.repos[REPO] = tmp_path / "repo"
        shutil.copytree(CHECKPOINTS / "target_tied", tmp_path / "repo")
        yield running


def add(server: Hub, name: str, data: bytes = b"x") -> None:
    file = server.repos[REPO] / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Qwen/Qwen3-4B", ("Qwen/Qwen3-4B", "main")),
        ("a/b.c_d@v1.0", ("a/b.c_d", "v1.0")),
        ("a/b@", ("a/b", "main")),
        ("noslash", None),
        ("a/b/c", None),
        ("/a/b", None),
        ("../b", None),
        ("a/", None),
        ("a b/c", None),
        ("", None),
    ],
)
def test_ids(text: str, parts: tuple[str, str] | None) -> None:
    assert hub.split_id(text) == parts


def test_fetches_what_is_needed_and_no_more(
    server: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("pytorch_model.bin", "modeling_x.py", "README.md", "onnx/model.safetensors"):
        add(server, name)
    add(server, "consolidated.safetensors")
    add(server, "tokenizer.json", b"{}")
    heard: list[tuple[str, int, int, str]] = []
    assert hub.cached(REPO, "main") is None
    folder = hub.snapshot(REPO, "main", lambda *step: heard.append(step))
    wanted = {p.name for p in (CHECKPOINTS / "target_tied").iterdir()} | {"tokenizer.json"}
    assert {p.name for p in folder.iterdir()} == wanted
    assert set(server.fetched) == wanted
    assert folder.name == COMMIT
    total = sum((server.repos[REPO] / name).stat().st_size for name in wanted)
    assert {(what, t, unit) for what, _, t, unit in heard} == {
        (f"downloading {REPO}", total, "bytes")
    }
    assert capfd.readouterr().err == ""


def test_later_starts_need_no_network(server: Hub) -> None:
    folder = hub.snapshot(REPO, "main")
    before = server.requests
    assert hub.snapshot(REPO, "main") == folder
    assert hub.cached(REPO, "main") == folder
    assert server.requests == before


def test_a_tokenizer_is_asked_for_where_another_program_cached_only_weights(server: Hub) -> None:
    from huggingface_hub import snapshot_download

    add(server, "tokenizer.json", b"{}")
    folder = Path(snapshot_download(REPO, allow_patterns=["config.json", "*.safetensors"]))
    assert hub.cached(REPO, "main") == folder
    assert hub.cached(REPO, "main", tokenizer=True) is None
    assert (hub.snapshot(REPO, "main", tokenizer=True) / "tokenizer.json").is_file()
    before = server.requests
    hub.snapshot(REPO, "main", tokenizer=True)
    assert server.requests == before


def test_without_a_network_weights_alone_have_to_do(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    folder = hub.snapshot(REPO, "main")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.snapshot(REPO, "main", tokenizer=True) == folder


def test_code_comes_only_on_request(server: Hub) -> None:
    config = server.repos[REPO] / "config.json"
    config.write_text(config.read_text().replace("{", '{"auto_map": {"AutoConfig": "x.C"},', 1))
    add(server, "x.py", b"C = 1")
    folder = hub.snapshot(REPO, "main")
    assert not (folder / "x.py").exists()
    assert hub.cached(REPO, "main", code=True) is None
    assert (hub.snapshot(REPO, "main", code=True) / "x.py").is_file()


def test_an_unfinished_download_does_not_count(server: Hub) -> None:
    folder = hub.snapshot(REPO, "main")
    weights = folder / "model.safetensors"
    blob = weights.resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    assert hub.cached(REPO, "main") is None
    blob.unlink()
    weights.unlink()
    assert hub.cached(REPO, "main") is None
    assert hub.snapshot(REPO, "main") == folder
    assert hub.cached(REPO, "main") == folder


def test_pickles_are_refused_before_anything_is_fetched(server: Hub) -> None:
    (server.repos[REPO] / "model.safetensors").unlink()
    add(server, "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"only as pickles \(pytorch_model.bin\)"):
        hub.snapshot(REPO, "main")
    (server.repos[REPO] / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match="holds no safetensors weights"):
        hub.snapshot(REPO, "main")
    assert server.fetched == []


def test_what_is_not_there(server: Hub) -> None:
    server.gated.add("someone/gated")
    with pytest.raises(BundleError, match="There is no model someone/none on the hub"):
        hub.snapshot("someone/none", "main")
    with pytest.raises(BundleError, match="has no revision 'v9'"):
        hub.snapshot(REPO, "v9")
    with pytest.raises(BundleError, match="is gated") as caught:
        hub.snapshot("someone/gated", "main")
    assert "hf auth login" in caught.value.remedy


def test_no_network(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the discard port: refused
    with pytest.raises(BundleError, match="could not be fetched") as caught:
        hub.snapshot(REPO, "main")
    assert "local folder" in caught.value.remedy


def test_remove(server: Hub, tmp_path: Path) -> None:
    assert hub.remove(REPO) == 0
    hub.snapshot(REPO, "main")
    used = hub.disk_use(REPO)
    assert used > (CHECKPOINTS / "target_tied" / "model.safetensors").stat().st_size
    assert hub.remove(REPO) == used
    assert hub.disk_use(REPO) == 0
    assert hub.cached(REPO, "main") is None
