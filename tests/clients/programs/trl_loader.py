"""TRL's trainer of process reward models: how it reads an export, and whether it trains on it."""

import json
import sys
from pathlib import Path

import datasets
import transformers
from trl.experimental.prm import PRMConfig, PRMTrainer

export, tokenizer_path, output = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_path)
rows = datasets.load_dataset("json", data_files=export, split="train", cache_dir=f"{output}.cache")
untrained = transformers.Qwen2Config(
    vocab_size=len(tokenizer),
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    num_labels=2,
    pad_token_id=tokenizer.pad_token_id,
)
trainer = PRMTrainer(
    model=transformers.Qwen2ForTokenClassification(untrained),
    args=PRMConfig(
        output_dir=f"{output}.trained",
        max_length=None,
        max_completion_length=None,
        max_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=rows,
    processing_class=tokenizer,
)
read = [
    [(tokenizer.decode(row["input_ids"][: at + 1]), label) for at, label in enumerate(row["labels"]) if label != -100]
    for row in trainer.train_dataset
]
trained = trainer.train()
told = {"columns": rows.column_names, "read": read, "trained": trained.global_step, "loss": trained.training_loss}
Path(output).write_text(json.dumps(told))
