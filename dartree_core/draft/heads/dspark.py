"""The DSpark head: a low-rank Markov bias and an estimate of acceptance (arXiv 2607.05147).

With e = W1[previous token] and h the slot's hidden state, the correction at a slot is, by kind,

- vanilla: `W2 . e`
- gated:   `W2 . (sigmoid(G . [h ; e] + b) * e)`
- rnn:     `W2 . tanh(o)`, where `[g ; c ; o] = J . [s ; e ; h] + b` and the recurrent state s
  starts at zero and moves on to `sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c)`.

W1 has a row per target id, W2 one per row of the drafter's vocabulary. The confidence head is
`sigmoid(c . [h ; e] + b)`, or of h alone; it was trained to predict the overlap of the drafter's
and the target's distributions, which is the acceptance rate of a token drawn at the slot. The
formulas are those of the public trainers (SpecForge, speculators).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dartree_core.draft.heads.base import CorrectionHead, Embed, Shapes
from dartree_core.draft.spec import DraftSpec


class MarkovBias(nn.Module):
    """The bias' parameters, by the names of the public checkpoints."""

    def __init__(self, spec: DraftSpec) -> None:
        super().__init__()
        self.rank, self.hidden_size = spec.head_dim_embed, spec.hidden_size
        r, h = self.rank, self.hidden_size
        self.markov_w1 = nn.Embedding(spec.vocab_size, r)
        self.markov_w2 = nn.Linear(r, spec.draft_vocab_size, bias=False)
        self.gate_proj = nn.Linear(h + r, r) if spec.head_variant == "gated" else None
        self.joint_proj = nn.Linear(2 * r + h, 3 * r) if spec.head_variant == "rnn" else None

    def embed(self, tokens: Tensor) -> Tensor:
        """e of target ids `[n]`, `[n, r]`; 0 for ids the drafter does not know."""
        table = self.markov_w1.weight
        known = tokens < len(table)
        return F.embedding(tokens.clamp(max=len(table) - 1), table) * known[:, None]

    def of_slots(self, hidden: Tensor) -> Tensor:
        """What h adds to the gates, `[K, H]` to `[K, 0]`, `[K, r]` or `[K, 3r]`."""
        if self.gate_proj is not None:
            weight = self.gate_proj.weight[:, : self.hidden_size]
            return F.linear(hidden, weight, self.gate_proj.bias)
        if self.joint_proj is not None:
            weight = self.joint_proj.weight[:, 2 * self.rank :]
            return F.linear(hidden, weight, self.joint_proj.bias)
        return hidden[:, :0]

    def latent(self, slot: Tensor, states: Tensor) -> Tensor:
        """What W2 is applied to, `[F, r]`."""
        if self.gate_proj is not None:
            by_token = F.linear(states, self.gate_proj.weight[:, self.hidden_size :])
            return torch.sigmoid(slot + by_token) * states
        if self.joint_proj is not None:
            rows = slice(2 * self.rank, None)
            return torch.tanh(self._joint(self.joint_proj, rows, slot, states))
        return states

    def recurrent(self, slot: Tensor, states: Tensor) -> Tensor:
        """s after a slot, `[F, r]`."""
        assert self.joint_proj is not None
        joint = self._joint(self.joint_proj, slice(0, 2 * self.rank), slot, states)
        gate, candidate = torch.sigmoid(joint[:, : self.rank]), torch.tanh(joint[:, self.rank :])
        return gate * states[:, : self.rank] + (1 - gate) * candidate

    def _joint(self, layer: nn.Linear, rows: slice, slot: Tensor, states: Tensor) -> Tensor:
        return slot[rows] + F.linear(states, layer.weight[rows, : 2 * self.rank])


class Confidence(nn.Module):
    """The confidence head's parameters.

    `reads_token` says whether e enters, `biased` whether there is a bias.
    """

    def __init__(self, spec: DraftSpec, *, reads_token: bool, biased: bool) -> None:
        super().__init__()
        width = spec.hidden_size + (spec.head_dim_embed if reads_token else 0)
        self.hidden_size = spec.hidden_size
        self.proj = nn.Linear(width, 1, bias=biased)

    def of_slots(self, hidden: Tensor) -> Tensor:
        """What h adds to the logit, `[K, 1]`."""
        return F.linear(hidden, self.proj.weight[:, : self.hidden_size], self.proj.bias)

    def forward(self, slot: Tensor, embedded: Tensor) -> Tensor:
        """float32 `[F]` from one slot's `[1]` and `[F, r]`."""
        weight = self.proj.weight[:, self.hidden_size :]
        by_token = F.linear(embedded, weight)[:, 0] if weight.shape[1] else 0.0
        logit = (slot + by_token).float().expand(len(embedded))
        return torch.sigmoid(logit)


class DSparkHead(CorrectionHead):
    """Markov head of any kind, with or without confidence.

    The state of a path is `[s ; e]`, or e alone where nothing is recurrent. Everything that
    reads h is computed once per slot, in `prepare`: its last column is the confidence's.

    Args:
        spec: Shapes and kind.
        shapes: Of a checkpoint's tensors: where `spec` leaves it open, they say whether there is
            a confidence head, what it reads, and whether it has a bias.
    """

    def __init__(self, spec: DraftSpec, shapes: Shapes | None = None) -> None:
        super().__init__()
        self.markov_head = MarkovBias(spec)
        self.confidence_head = _confidence(spec, shapes)

    @property
    def _recurrent(self) -> bool:
        return self.markov_head.joint_proj is not None

    def _split(self, shared: Tensor) -> tuple[Tensor, Tensor]:
        """A slot's row: the bias' part and the confidence's, `[0]` without one."""
        end = len(shared) - (self.confidence_head is not None)
        return shared[:end], shared[end:]

    def prepare(self, hidden: Tensor) -> Tensor:
        """What h adds everywhere: `[K, H]` to `[K, 0]`, `[K, r]` or `[K, 3r]`, one column more
        with a confidence head."""
        parts = self.markov_head.of_slots(hidden)
        if self.confidence_head is None:
            return parts
        return torch.cat((parts, self.confidence_head.of_slots(hidden)), dim=-1)

    def root_state(self, token: Tensor, embedding: Tensor) -> Tensor:
        """`[0 ; e]`, or e."""
        embedded = self.markov_head.embed(token)
        return F.pad(embedded, (self.markov_head.rank, 0)) if self._recurrent else embedded

    def advance(
        self, states: Tensor, tokens: Tensor, embeddings: Tensor, shared: Tensor | None = None
    ) -> Tensor:
        """The new token's e; s moves on through the slot.

        Raises:
            ValueError: The head is recurrent and `shared` is None.
        """
        return self._next(states, tokens, shared)

    def follow(
        self, states: Tensor, tokens: Tensor, embed: Embed, shared: Tensor | None = None
    ) -> Tensor:
        """As `advance`: the target's embeddings do not enter."""
        return self._next(states, tokens, shared)

    def _next(self, states: Tensor, tokens: Tensor, shared: Tensor | None) -> Tensor:
        embedded = self.markov_head.embed(tokens)
        if not self._recurrent:
            return embedded
        if shared is None:
            raise ValueError("A recurrent Markov head advances through slots; give `shared`.")
        return torch.cat(
            (self.markov_head.recurrent(self._split(shared)[0], states), embedded), dim=-1
        )

    def correct(self, shared: Tensor, states: Tensor, candidates: Tensor | None) -> Tensor:
        """`W2[candidates] . latent`."""
        latent = self.markov_head.latent(self._split(shared)[0], states)
        w2 = self.markov_head.markov_w2.weight
        return F.linear(latent, w2 if candidates is None else w2[candidates])

    def confidence(self, shared: Tensor, states: Tensor) -> Tensor | None:
        """The confidence head's estimate, or None without one."""
        if self.confidence_head is None:
            return None
        estimate: Tensor = self.confidence_head(
            self._split(shared)[1], states[:, -self.markov_head.rank :]
        )
        return estimate


def _confidence(spec: DraftSpec, shapes: Shapes | None) -> Confidence | None:
    """The confidence head `spec` asks for, or that the checkpoint brings where `spec` is silent."""
    weight = None if shapes is None else shapes.get("confidence_head.proj.weight")
    wanted = spec.confidence
    if wanted is None:
        wanted = shapes is None or weight is not None
    if not wanted:
        return None
    reads_token = spec.confidence_reads_token
    if reads_token is None:
        reads_token = not weight or weight[-1] != spec.hidden_size
    biased = shapes is None or "confidence_head.proj.bias" in shapes
    return Confidence(spec, reads_token=reads_token, biased=biased)
