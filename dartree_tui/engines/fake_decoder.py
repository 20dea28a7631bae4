"""A decoder made of a random generator. For tests only.

It speaks whole event streams that honour every invariant of a draft tree, at any speed, without
a model. What it says is a fixed text whatever the settings, as lossless decoding would.
"""

from __future__ import annotations

import math
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from dartree_core.config import CHAINS, DecodeConfig, TreeConfig
from dartree_core.errors import CapacityError
from dartree_core.events import (
    BlockDrafted,
    DepthExpanded,
    Event,
    PrefillDone,
    Provenance,
    RoundDone,
    RunStarted,
    TreePruned,
    TreeVerified,
    TurnFinished,
    TurnStarted,
)
from dartree_core.glances import Follow, StepByStep, Watcher
from dartree_core.tree import BonusFate, DraftTree, State

ANSWER = """\
Speculative decoding lets a small *drafter* guess and a large **target** check.

1. The drafter proposes a tree of tokens.
2. The target scores the whole tree in one pass.
3. The longest path it agrees with is kept.

```python
def accept(path, choice):
    return [t for t, c in zip(path, choice) if t == c]
```

Nothing changes in the text: 日本語, emoji 🙂 and spaces  included.
"""

DEPTH = 7


def tokenize(text: str) -> list[str]:
    """Words with their leading blank, and everything else one character at a time."""
    return re.findall(r" ?[A-Za-z0-9]+|(?s:.)", text)


class FakeSession:
    """A conversation that remembers nothing but whether it should stop."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.tree: TreeConfig | None = None
        self.turns = 0
        self.watcher: Watcher = StepByStep()

    def cancel(self) -> None:
        """End the running turn after its round."""
        self.stop.set()

    def retune(self, tree: TreeConfig) -> None:
        """Use these settings from the next round on."""
        self.tree = tree


class FakeDecoder:
    """Streams `answer`, a token tree at a time.

    Args:
        seconds: Time of one round.
        answer: What it says; a prompt that contains "fail" makes it fail instead.
        seed: Decides the trees.
    """

    facts: ClassVar[dict[str, Any]] = {
        "target": {"name": "fake-135M"},
        "drafter": {"name": "fake drafter"},
        "device": "cpu",
        "dtype": "float32",
    }

    def __init__(self, seconds: float = 0.0, answer: str = ANSWER, seed: int = 0) -> None:
        self._seconds = seconds
        words = tokenize(answer)
        filler = [" the", " a", " of", "\n", " cat", " box", "é", " to", " and", ","]
        self.words = list(dict.fromkeys([*filler, *words, *(f" w{i}" for i in range(400))]))
        ids = {word: i for i, word in enumerate(self.words)}
        self._answer = [ids[w] for w in words]
        self._seed = seed

    def session(self) -> FakeSession:
        """A new conversation."""
        return FakeSession()

    def stream(
        self,
        prompt: Any,
        config: DecodeConfig,
        *,
        session: FakeSession,
        raw: bool = False,
        thinking: bool | None = None,
    ) -> Iterator[Event]:
        """One turn."""
        last = prompt if isinstance(prompt, str) else prompt[-1]
        by_ids = isinstance(last, int)
        said = "" if by_ids else str(last["content"] if isinstance(last, dict) else last)
        answer = self._rest(prompt) if by_ids else self._answer
        session.stop.clear()
        session.tree = None
        turn, session.turns = session.turns, session.turns + 1
        if turn == 0:
            yield RunStarted(
                bundle="fake",
                **self.facts,
                config=config.to_dict(),
                prompt=said,
            )
        ids = tuple(prompt) if by_ids else tuple(range(min(len(said), 8)))
        template = "ids" if by_ids else "raw" if raw else "chat"
        yield TurnStarted(turn, said, ids, template, config.to_dict())
        if "fail" in said:
            raise CapacityError("The prompt does not fit.", "Shorten it.")
        time.sleep(self._seconds)
        rng = random.Random(self._seed)
        limit = min(config.max_new_tokens, len(answer))
        emitted = answer[:1]
        text = self.words[emitted[0]]
        yield PrefillDone(turn, len(ids), 0, 0.02, 0.03, emitted[0], text, (0, len(text)))
        number = 0
        while len(emitted) < limit and not session.stop.is_set():
            tree = session.tree or config.tree
            made = _Round(self, rng, turn, number, emitted, answer[:limit], config, tree, len(text))
            follow = session.watcher.follow() if config.stages else Follow.NO
            if config.method != "ar" and follow is not Follow.NO:
                for stage in made.stages():
                    time.sleep(self._seconds / (DEPTH + 3))
                    yield stage
            else:
                time.sleep(self._seconds)
            done = made.done()
            emitted = [*emitted, *done.tokens]
            text += done.text_delta
            number += 1
            yield done
        reason = "cancelled" if session.stop.is_set() else "eos"
        if reason == "eos" and len(emitted) < len(answer):
            reason = "length"
        yield TurnFinished(turn, reason, text, tuple(emitted))  # type: ignore[arg-type]

    def _rest(self, prompt: Sequence[int]) -> list[int]:
        """What of the answer is still to be said after a prompt that holds its beginning."""
        for said in range(len(self._answer) - 1, 0, -1):
            if list(prompt[-said:]) == self._answer[:said]:
                return self._answer[said:]
        return self._answer


class _Round:
    """One random round that, on its accepted path, says what the answer says."""

    def __init__(
        self,
        decoder: FakeDecoder,
        rng: random.Random,
        turn: int,
        number: int,
        emitted: Sequence[int],
        answer: Sequence[int],
        config: DecodeConfig,
        tree: TreeConfig,
        chars: int,
    ) -> None:
        self._words, self._rng = decoder.words, rng
        self._turn, self._number, self._chars = turn, number, chars
        self._ahead = list(answer[len(emitted) :])
        self._position = len(emitted)
        self._config, self._tree = config, tree
        self._seconds = decoder._seconds
        self._token, self._parent, self._depth = [emitted[-1]], [-1], [0]
        self._draft, self._head, self._path = [0.0], [0.0], [0.0]
        self._true = [0]
        if config.method != "ar":
            self._grow()
        self._select = [
            p + tree.depth_bonus * d for p, d in zip(self._path, self._depth, strict=True)
        ]
        best = sorted(range(1, len(self._token)), key=lambda i: (-self._select[i], i))
        self._kept = {0, *best[: tree.limit]}
        # The walk may run ahead of the answer's end; what is emitted is cut there.
        self._accepted = [i for i in self._true if i in self._kept][: len(self._ahead) + 1]

    def _grow(self) -> None:
        rng = self._rng
        width = 1 if self._config.method in CHAINS else self._tree.width
        frontier = [0]
        for depth in range(1, DEPTH + 1):
            ahead = self._ahead[depth - 1] if depth <= len(self._ahead) else None
            on_path = self._true[-1] if len(self._true) == depth else None
            scored: list[tuple[float, int, int, float, float]] = []
            for parent in frontier:
                tokens = rng.sample(range(len(self._words) - 1), 4)
                share = [0.55, 0.2, 0.1, 0.04]
                if parent == on_path and ahead is not None and rng.random() < 0.8:
                    tokens = [t for t in tokens if t != ahead][:3]
                    tokens.insert(0 if rng.random() < 0.7 else 1, ahead)
                for token, p in zip(tokens, share, strict=False):
                    head = math.log(p * rng.uniform(0.6, 1.0))
                    draft = head - rng.uniform(0, 1.5) * depth / 3
                    scored.append((self._path[parent] + head, token, parent, draft, head))
            scored.sort(key=lambda row: (-row[0], row[2], row[1]))
            next_frontier = []
            for path, token, parent, draft, head in scored[:width]:
                node = len(self._token)
                self._token.append(token)
                self._parent.append(parent)
                self._depth.append(depth)
                self._draft.append(draft)
                self._head.append(head)
                self._path.append(path)
                next_frontier.append(node)
                if parent == on_path and token == ahead:
                    self._true.append(node)
            frontier = next_frontier

    def stages(self) -> Iterator[Event]:
        turn, number = self._turn, self._number
        slots = [[i for i, d in enumerate(self._depth) if d == k] for k in range(1, DEPTH + 1)]
        marginals = [list(dict.fromkeys(self._token[i] for i in s))[:8] for s in slots]
        yield BlockDrafted(
            turn, number, marginals, [[-0.5 - 0.4 * k for k in range(len(m))] for m in marginals]
        )
        for depth, nodes in enumerate(slots, 1):
            yield DepthExpanded(
                turn,
                number,
                depth,
                4 * max(len(nodes), 1),
                nodes,
                [self._token[i] for i in nodes],
                [self._parent[i] for i in nodes],
                [self._draft[i] for i in nodes],
                [self._head[i] for i in nodes],
                [self._path[i] for i in nodes],
            )
        kept = sorted(self._kept)
        yield TreePruned(turn, number, kept)
        bonus = self._bonus()
        follow = {
            a: self._token[b] for a, b in zip(self._accepted, self._accepted[1:], strict=False)
        }
        if bonus is not None:
            follow[self._accepted[-1]] = bonus
        none = len(self._words) - 1
        choice = [follow.get(i, none) for i in kept]
        yield TreeVerified(turn, number, kept, choice, [self._target(i) for i in kept])

    def _target(self, node: int) -> float:
        if node == 0:
            return 0.0
        return -0.2 if node in self._accepted else -3.0 - 0.01 * node

    def _bonus(self) -> int | None:
        place = len(self._accepted) - 1
        return self._ahead[place] if place < len(self._ahead) else None

    def _fate(self, bonus: int | None) -> BonusFate | None:
        if bonus is None:
            return None
        last = self._accepted[-1]
        children = [i for i, p in enumerate(self._parent) if p == last]
        if any(self._token[i] == bonus for i in children):
            return "final_pruned"
        if self._depth[last] == DEPTH or self._config.method == "ar":
            return "not_expanded"
        return "level_pruned" if children else "not_proposed"

    def _state(self, node: int) -> State:
        if node not in self._kept:
            return "pruned"
        if node in self._accepted:
            return "hit"
        return "walked_past" if self._parent[node] in self._accepted else "unreached"

    def done(self) -> RoundDone:
        nodes = range(len(self._token))
        bonus = self._bonus()
        tokens = [self._token[i] for i in self._accepted[1:]]
        provenance: list[Provenance] = ["draft"] * len(tokens)
        if bonus is not None:
            tokens.append(bonus)
            provenance.append("bonus")
        delta = "".join(self._words[t] for t in tokens)
        ar = self._config.method == "ar"
        full = self._config.detail == "full"
        target = [self._target(i) if i in self._kept else math.nan for i in nodes]
        tree = DraftTree(
            token=tuple(self._token),
            parent=tuple(self._parent),
            depth=tuple(self._depth),
            slot=tuple(d - 1 for d in self._depth),
            draft_logp=tuple(self._draft),
            head_logp=tuple(self._head),
            path_logp=tuple(self._path),
            select=tuple(self._select),
            kept=tuple(i in self._kept for i in nodes),
            state=tuple(self._state(i) for i in nodes),
            target_logp=tuple(target) if full else None,
            draft_rank=tuple(i and 1 + i % 5 for i in nodes) if full else None,
            head_rank=tuple(i and 1 + i % 4 for i in nodes) if full else None,
            target_rank=tuple(i and (1 if i in self._accepted else 3) for i in nodes)
            if full
            else None,
            coverage=tuple(0.8 if i in self._kept else math.nan for i in nodes) if full else None,
        )
        total = max(self._seconds * 1000, 20.0)
        share = (0, 0, 0, 0.97, 0.03) if ar else (0.15, 0.1, 0.03, 0.7, 0.02)
        names = ("draft", "tree_build", "tree_setup", "verify", "commit")
        return RoundDone(
            turn=self._turn,
            round=self._number,
            position=self._position,
            tree=tree,
            accepted=tuple(self._accepted),
            tokens=tuple(tokens),
            provenance=tuple(provenance),
            bonus=bonus,
            bonus_fate=self._fate(bonus),
            text_delta=delta,
            span=(self._chars, self._chars + len(delta)),
            ms={n: total * s for n, s in zip(names, share, strict=True)},  # type: ignore[misc]
            kv_length=self._position + len(tokens),
            budget=0 if ar else self._tree.limit,
            note="method ar decodes without a tree" if ar else "",
        )
