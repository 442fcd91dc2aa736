"""What transformers answers about pictures with a checkpoint's weights, greedily. Run by vLLM's Python.

python transformers_reference.py FOLDER ASKED ANSWERED: ASKED is JSON, a list of prompts, each a text with
`<image>` in it and the PNG files that stand there; ANSWERED is written as JSON, of each the prompt's ids and
those of the answer.
"""

import json
import os
import sys
from pathlib import Path
from typing import Final

COUNT: Final = 8
"""Tokens of an answer."""


def main() -> None:
    """Answer what is asked."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from PIL import Image
    from transformers import AutoTokenizer, Idefics3ForConditionalGeneration, Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    folder, asked, answered = map(Path, sys.argv[1:])
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
        **{"image_seq_len": json.loads((folder / "processor_config.json").read_text())["image_seq_len"]},
    )
    model = Idefics3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for text, files in json.loads(asked.read_text()):
        images = [Image.open(file).convert("RGB") for file in files]
        inputs = processor(images=[images], text=[text], return_tensors="pt", add_special_tokens=False)
        with torch.inference_mode():
            tokens = model.generate(**inputs, do_sample=False, max_new_tokens=COUNT)[0].tolist()
        prompt = inputs["input_ids"][0].tolist()
        found.append([prompt, tokens[len(prompt) :]])
    answered.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
