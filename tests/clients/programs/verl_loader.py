"""verl's dataset of prompts for reinforcement learning: how it reads an export, batched as its trainer does."""

import json
import sys
from pathlib import Path

import transformers
from omegaconf import OmegaConf
from torch.utils.data import DataLoader
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

export, tokenizer_path, output = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_path)
config = OmegaConf.create({"cache_dir": f"{output}.cache", "max_prompt_length": 512, "truncation": "error"})
rows = RLHFDataset(data_files=export, tokenizer=tokenizer, config=config)
told = []
for batch in DataLoader(rows, batch_size=8, collate_fn=collate_fn):
    columns = {name: values for name, values in batch.items() if name != "dummy_tensor"}
    told += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
Path(output).write_text(json.dumps(told))
