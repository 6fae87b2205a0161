"""A model of a GGUF file is unpacked and grown, once for each file and what was trained for it."""

from pathlib import Path

import gguf_files
import torch

from benchmarks.grow.unpacked import unpack
from benchmarks.pairs import make_real
from draftwood import load
from draftwood.models.checkpoints import checkpoint, saving
from draftwood.models.decoder import Decoder
from draftwood.models.decoder_config import DecoderConfig
from draftwood.models.heads import eagle
from draftwood.models.heads.eagle_head import EagleHead

WORDS = {"model": "gpt2", "pre": "gpt-2", "tokens": [chr(97 + i) for i in range(26)], "merges": [], "eos_token_id": 3}
SHAPE = {"layers": 3, "width": 128, "heads": 4, "kv_heads": 2, "intermediate": 192}


def test_a_file_is_grown_once_with_its_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, trained, out = tmp_path / "source", tmp_path / "trained", tmp_path / "pair" / "target"
    saving.save(Decoder(DecoderConfig(26, 64, 96, 3, 2, 1, 32, 128)), source)
    file = gguf_files.write(source, tmp_path / "x.gguf", words=WORDS)
    unpack(file, tmp_path / "plain")
    options = {"max_new_tokens": 12, "sampling": {"temperature": 0}}
    engines = [load(place, dtype="float32") for place in (file, tmp_path / "plain")]
    texts = [engine.generate("abcd", "autoregressive", **options) for engine in engines]  # type: ignore[arg-type]
    assert texts[0].tokens == texts[1].tokens and texts[0].text == texts[1].text
    assert engines[0].end_tokens == engines[1].end_tokens
    head = EagleHead.of(checkpoint.load(file, "float32", "cpu", packed=False), [1, 2])
    eagle.save(head.weights(), trained / "eagle", head.target, head.reads)
    made = make_real(file, "one", trained, SHAPE, out)
    assert load(made).default_method.name == "eagle"
    first = (out / "config.json").stat().st_mtime_ns
    make_real(file, "one", trained, SHAPE, out)
    assert (out / "config.json").stat().st_mtime_ns == first
    make_real(file, "another", trained, SHAPE, out)
    assert (out / "config.json").stat().st_mtime_ns > first
