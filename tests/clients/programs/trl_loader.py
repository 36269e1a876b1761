"""TRL's trainer of process reward models: how it reads an export, and what it makes of a tiny model with it."""

import json
import sys
from pathlib import Path

import datasets
import torch
import transformers
from trl.experimental.prm import PRMConfig, PRMTrainer

export, tokenizer_path, output = sys.argv[1:]
transformers.set_seed(7)
torch.set_num_threads(1)  # the application has the other cores
tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_path)
rows = datasets.load_dataset("json", data_files=export, split="train", cache_dir=f"{output}.cache")
untrained = transformers.Qwen2Config(
    vocab_size=len(tokenizer),
    hidden_size=64,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=tokenizer.model_max_length,
    num_labels=2,
    pad_token_id=tokenizer.pad_token_id,
)
model = transformers.Qwen2ForTokenClassification(untrained)
model.save_pretrained(f"{output}.untrained")
trainer = PRMTrainer(
    model=model,
    args=PRMConfig(
        output_dir=f"{output}.trained",
        max_length=None,
        max_completion_length=None,
        max_steps=600,
        learning_rate=3e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    ),
    train_dataset=rows,
    processing_class=tokenizer,
)
read = [
    (row["input_ids"], [at for at, label in enumerate(row["labels"]) if label != -100]) for row in trainer.train_dataset
]
labels = [[label for label in row["labels"] if label != -100] for row in trainer.train_dataset]
trained = trainer.train()
trainer.save_model(f"{output}.trained")
tokenizer.save_pretrained(f"{output}.untrained")
told = {"columns": rows.column_names, "read": read, "labels": labels, "loss": trained.training_loss}
Path(output).write_text(json.dumps(told))
