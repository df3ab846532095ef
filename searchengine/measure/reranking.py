"""Whether a cross-encoder in training helps: the order of a search without it, and with it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from searchengine.corpus.documents import Document
from searchengine.engine import TextEncoder
from searchengine.measure.encoder_comparison import encoded
from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.evaluation.ranking import MAIN, per_question
from searchengine.trainer.training.cross_encoder_training import Order

CANDIDATES, SHOWN = 50, 10  # hits that are ordered again, as by default, and hits that are judged
MOST_TEXTS = 20_000
"""Texts of the collection: more would take longer to encode than the training takes."""


class Reranking:
    """Judges a cross-encoder in a collection of all texts, which is removed afterwards.

    Call it with the questions and the texts that answer each, all texts, and the scorer: it gives
    nDCG@10 of each question by words and vectors of `encoder`, and with the best CANDIDATES of
    that search ordered again.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder

    def __call__(
        self, answers: Mapping[str, Sequence[str]], texts: Sequence[str], scorer: CrossEncoder
    ) -> Order:
        """texts: the answers first, so that they are among the MOST_TEXTS that are searched."""
        keys = {text: f"text {i}" for i, text in enumerate(dict.fromkeys(texts))}
        questions = list(answers)
        qrels = {q: {keys[text]: 1 for text in found} for q, found in answers.items()}
        with encoded(_documents(keys), self._encoder) as engine:
            found = engine.search_batch(questions, CANDIDATES)
        pairs = [(q, hit.passage) for q, hits in zip(questions, found, strict=True) for hit in hits]
        scores = iter(scorer.score(*map(list, zip(*pairs, strict=True))).tolist())
        before = [[hit.key for hit in hits] for hits in found]
        after = []
        for keys_found in before:
            ranked = sorted((-next(scores), i) for i in range(len(keys_found)))
            after.append([keys_found[i] for _, i in ranked])
        values = []
        for batch in (before, after):
            run = {
                question: {key: -float(rank) for rank, key in enumerate(ranked[:SHOWN])}
                for question, ranked in zip(questions, batch, strict=True)
            }
            values.append(per_question(run, questions, qrels, (MAIN,))[MAIN])
        return Order("nDCG@10", np.asarray(values[0]), np.asarray(values[1]))


def _documents(keys: Mapping[str, str]) -> Iterator[Document]:
    return (Document(key, text) for text, key in islice(keys.items(), MOST_TEXTS))
