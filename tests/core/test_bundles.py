"""Which models a name, a path or a hub id stands for, and loading them."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dartree_core.bundles import fetch, hub, load, registry, resolve
from dartree_core.bundles.facts import read_config
from dartree_core.bundles.registry import Bundle, HubSource
from dartree_core.errors import BundleError, CheckpointError, ConfigError
from tests.core.tiny_gguf import bundle_for, source_for, write_gguf, write_wheel

CHECKPOINTS = Path(__file__).parents[1] / "conformance" / "data" / "checkpoints"
TARGET, DRAFT = CHECKPOINTS / "target_tied", CHECKPOINTS / "draft_tied_p0_s0"


@pytest.fixture(autouse=True)
def offline_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no way out of this machine."""
    from huggingface_hub import constants

    monkeypatch.setenv("DARTREE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path / "home"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A registered bundle whose target is already built in the cache."""
    gguf = write_gguf(tmp_path / "tiny.gguf").path
    source = source_for(write_wheel(tmp_path, gguf), gguf)
    bundle = replace(bundle_for(source), twins=("someone/Tiny",))
    monkeypatch.setitem(registry._BUNDLES, "tiny", bundle)
    fetch.ensure_wheel_target(bundle, source, given=gguf)
    return bundle


class TestRegistry:
    def test_the_default_is_there_and_first(self) -> None:
        assert registry.names()[0] == registry.DEFAULT == "demo"
        assert registry.get("demo").name == "demo"

    def test_names_match_and_hub_sources_are_ids(self) -> None:
        for name in registry.names():
            bundle = registry.get(name)
            assert bundle.name == name
            for source in (bundle.target, bundle.draft):
                assert source.label
                assert source.origin
                if isinstance(source, HubSource):
                    assert hub.split_id(source.repo) == (source.repo, "main")

    @pytest.mark.parametrize("size", ["4b", "8b"])
    def test_a_target_with_several_drafters_suggests_the_head_that_trees_use(
        self, size: str
    ) -> None:
        target = f"Qwen/Qwen3-{size.upper()}"
        pairs = [b for b in registry.bundles() if b.target.label == target]
        assert [b.name for b in pairs] == [
            f"qwen3-{size}",
            f"qwen3-{size}-dflash",
            f"qwen3-{size}-dspark",
        ]
        assert registry.paired_with(target) is pairs[0]
        assert len({b.draft.label for b in pairs}) == 3
        assert all("unknown" in b.licence for b in pairs)  # nobody has stated the drafters'

    def test_near_names_are_suggested(self) -> None:
        with pytest.raises(BundleError) as caught:
            registry.get("Qwen3-4")
        assert "qwen3-4b" in caught.value.remedy
        with pytest.raises(BundleError) as caught:
            registry.get("xyzzy")
        assert "demo" in caught.value.remedy

    def test_the_shipped_drafter_fits_its_description(self) -> None:
        draft = registry.get("demo").draft
        assert isinstance(draft, registry.PackagedSource)
        config = read_config(draft.path)
        assert config["draft_vocab_size"] == 12288  # the bundle's notes say so
        assert config["dflash_config"]["projector_type"] == "domino"


class TestResolve:
    def test_a_bundle_by_name(self, tiny: Bundle, offline_home: Path) -> None:
        found = resolve("tiny")
        assert found.name == "tiny"
        assert found.target_path == offline_home / "bundles" / "tiny" / "target"
        assert found.target_label == "Tiny"
        assert found.target.revision == "tiny-model 1.0"
        assert found.draft_path == Path(registry.__file__).parent / "demo"
        assert found.notes == ()

    def test_folders(self) -> None:
        found = resolve(target=TARGET, draft=str(DRAFT))
        assert (found.name, found.target_path, found.draft_path) == ("", TARGET, DRAFT)
        assert (found.target_label, found.draft_label) == ("target_tied", "draft_tied_p0_s0")

    def test_another_target_gets_no_drafter_and_a_note(self) -> None:
        found = resolve(target=TARGET)
        assert found.draft is None
        assert found.draft_path is None
        assert found.draft_label == ""
        [note] = found.notes
        assert "bundle demo was not made for target_tied" in note
        assert "--draft" in note

    def test_the_bundles_own_target_by_path_keeps_its_drafter(self, tiny: Bundle) -> None:
        path = resolve("tiny").target_path
        found = resolve("tiny", target=path)
        assert found.draft_label == "shipped"
        assert found.target_label == "Tiny"
        assert found.notes == ()

    def test_no_drafter_on_request(self, tiny: Bundle) -> None:
        found = resolve("tiny", draft="none")
        assert found.draft is None
        assert found.notes == ()
        assert found.name == ""

    def test_a_gguf_file(self, tmp_path: Path, offline_home: Path) -> None:
        found = resolve(target=write_gguf(tmp_path / "mine.gguf").path)
        assert found.target_path.parent == offline_home / "gguf"
        assert found.target_label == "mine"

    def test_hub_ids(self, tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[str, str, bool, bool]] = []

        def snapshot(
            repo: str, revision: str, progress: object, *, code: bool, tokenizer: bool
        ) -> Path:
            asked.append((repo, revision, code, tokenizer))
            return TARGET

        monkeypatch.setattr(hub, "snapshot", snapshot)
        twin = resolve("tiny", target="someone/Tiny@v1", draft=None, trust_remote_code=True)
        assert twin.draft_label == "shipped"  # another build of the same target
        other = resolve("tiny", target="Qwen/Qwen3-4B")
        assert other.draft is None
        assert "--bundle qwen3-4b has one that was" in other.notes[0]
        both = resolve(target="a/t", draft="a/d", trust_remote_code=True)
        assert (both.target_label, both.draft_label) == ("a/t", "a/d")
        assert asked == [
            ("someone/Tiny", "v1", True, True),
            ("Qwen/Qwen3-4B", "main", False, True),
            ("a/t", "main", True, True),
            # A drafter's code is never fetched, and it speaks its target's tokens.
            ("a/d", "main", False, False),
        ]

    def test_an_existing_folder_wins_over_a_hub_id(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copytree(TARGET, tmp_path / "owner" / "name")
        monkeypatch.chdir(tmp_path)
        assert resolve(target="owner/name").target_path == Path("owner/name")

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"target": "demo"}, "names a bundle. Use --bundle demo"),
            ({"target": "./none"}, "--target ./none does not exist"),
            ({"target": "none.gguf"}, "--target none.gguf does not exist"),
            ({"target": "word"}, "--target word does not exist"),
            ({"target": "~/none/there"}, "--target ~/none/there does not exist"),
            ({"target": TARGET / "config.json"}, "is a file"),
            ({"bundle": "dmo"}, "Did you mean demo"),
            ({"target": "a/b"}, "a/b is not in the hub's cache and could not be fetched"),
        ],
    )
    def test_what_cannot_be_found(self, given: dict[str, str | Path], says: str) -> None:
        with pytest.raises(BundleError) as caught:
            resolve(**given)  # type: ignore[arg-type]
        assert says in str(caught.value)
        assert caught.value.remedy

    def test_drafts_cannot_be_gguf(self, tiny: Bundle, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match=r"--draft .* is a file") as caught:
            resolve("tiny", draft=tmp_path / "tiny.gguf")
        assert "gguf" not in caught.value.remedy

    def test_folders_that_are_no_models(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"no config\.json"):
            resolve(target=tmp_path)
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "pytorch_model.bin").write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            resolve(target=tmp_path)

    def test_offline_with_an_empty_cache(self) -> None:
        with pytest.raises(BundleError, match="SmolLM2-135M-Instruct is not in the cache"):
            resolve()


class TestLoad:
    def test_a_trio_is_ready_to_decode(self) -> None:
        from dartree_core import DecodeConfig

        heard: list[tuple[str, int, int, str]] = []
        decoder = load(
            target=TARGET,
            draft=DRAFT,
            device="cpu",
            dtype="float32",
            progress=lambda *step: heard.append(step),
        )
        assert heard[0] == ("loading target_tied", 0, 3, "steps")
        assert ("loading target_tied", 3, 3, "steps") in heard
        assert heard[-1] == ("measuring this machine", 1, 1, "steps")
        plain = decoder.generate([5, 6, 7], DecodeConfig(method="ar", max_new_tokens=12))
        tree = decoder.generate([5, 6, 7], DecodeConfig(method="dartree", max_new_tokens=12))
        assert list(tree.token_ids) == list(plain.token_ids)
        assert len(plain.token_ids) > 0

    def test_notes_reach_the_log_and_the_decoder(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            decoder = load(target=TARGET, device="cpu")
        assert decoder.drafter is None
        assert "No drafter is used" in caplog.text
        assert any("No drafter is used" in note for note in decoder.notes)

    def test_a_drafter_of_another_target_is_refused(self, tiny: Bundle) -> None:
        with pytest.raises(CheckpointError):
            load("tiny", device="cpu")  # the shipped drafter is far wider than the tiny target

    @pytest.mark.parametrize("given", [{"device": "abacus"}, {"dtype": "int3"}])
    def test_devices_are_checked_before_anything_is_fetched(self, given: dict[str, str]) -> None:
        with pytest.raises(ConfigError):
            load(**given)  # type: ignore[arg-type]

    def test_code_in_a_model_is_not_run(self, tmp_path: Path) -> None:
        folder = tmp_path / "coded"
        shutil.copytree(TARGET, folder)
        config = folder / "config.json"
        config.write_text(config.read_text().replace("{", '{"auto_map": {"AutoConfig": "x.C"},', 1))
        (folder / "x.py").write_text("raise SystemExit('ran')")
        with pytest.raises(ConfigError, match="brings its own Python code"):
            load(target=folder, device="cpu")


def test_finding_models_needs_no_torch() -> None:
    code = (
        "import sys; from dartree_core.bundles import resolve;"
        f"resolve(target={str(TARGET)!r}, draft={str(DRAFT)!r});"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
