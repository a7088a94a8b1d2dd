"""Small tokenizers of the two kinds that language models use, trained on the spot."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from plimsoll_runtime.text.tokenizer import Tokenizer, load_tokenizer
from plimsoll_runtime.weights.files import ModelFiles

CORPUS = [
    "The capital of France is Paris, and the capital of Japan is 東京.",
    "def main():\n    print('hello, world')\n\n\treturn 0  # indented\n",
    "Ünïcödé text: naïve café, русский язык, 日本語のテキスト, العربية, emoji 😀👩‍👩‍👧 and numbers 12345.",
    "<|im_start|>user\nWhat is it?<|im_end|>\n",
] * 3
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="session")
def byte_level_backend() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


@pytest.fixture(scope="session")
def sentencepiece_backend() -> tokenizers.Tokenizer:
    """A tokenizer like Llama's: "▁" for spaces, one before the first word, byte pieces for unknown characters."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learner.train_from_iterator(CORPUS[:2], trainers.BpeTrainer(vocab_size=150, show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    pieces = ["<unk>", *SPECIALS, *(f"<0x{value:02X}>" for value in range(256))]
    pieces += [piece for piece in learned["vocab"] if piece not in pieces]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[tuple(merge) for merge in learned["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.add_special_tokens(["<unk>", *SPECIALS])
    backend.normalizer = learner.normalizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend


@pytest.fixture(scope="session")
def word_piece_backend() -> tokenizers.Tokenizer:
    """A tokenizer whose decoder is not a spelling."""
    vocabulary = ["[UNK]", "hello", "##ing", "##s", "world", ",", ".", "don", "'", "t", "go", "##�"]
    backend = tokenizers.Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return backend


@pytest.fixture(scope="session")
def byte_level(byte_level_backend: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(byte_level_backend, tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_backend: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(sentencepiece_backend, tmp_path_factory.mktemp("sentencepiece"))


@pytest.fixture(scope="session")
def word_piece(word_piece_backend: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(word_piece_backend, tmp_path_factory.mktemp("word_piece"))


@pytest.fixture(params=["byte_level", "sentencepiece", "word_piece"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def model_files(tmp_path: Path) -> Callable[..., ModelFiles]:
    """Return a function that writes a model's files to a new folder: `model_files(backend, tokenizer_config={...})`."""

    def build(backend: tokenizers.Tokenizer | None = None, **contents: object) -> ModelFiles:
        if backend is not None:
            backend.save(str(tmp_path / "tokenizer.json"))
        for name, content in contents.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return folder_files(tmp_path)

    return build


def folder_files(folder: Path) -> ModelFiles:
    return ModelFiles(name="m", root=folder, format="safetensors", config={}, weights=())


def load(backend: tokenizers.Tokenizer, folder: Path) -> Tokenizer:
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder_files(folder))
