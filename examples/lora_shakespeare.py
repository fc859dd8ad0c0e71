"""A language model with low-rank adapters, private for each role of a play and not for each line.

The model is trained on public plays first, all of it and without privacy; then it is frozen, and
adapters learn the private plays: `groups` names the role of each line, and the promise is for all
lines of a role. The plays are Shakespeare's where PRIVADA_DATA has them, else made up.

    python examples/lora_shakespeare.py --steps 50
"""

import argparse
import math

import peft
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

import datasets
import privada as pv
from data import roles


def warm_up(model, rows, steps, length):
    """Train the whole model on public rows, without privacy."""
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    for place, row in enumerate(rows):
        kept = torch.tensor(row["input_ids"][:length])
        tokens[place, : len(kept)] = kept
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(steps):
        some = tokens[torch.randint(len(tokens), (16,))]
        labels = some.masked_fill(some == 0, -100)
        model(input_ids=some, attention_mask=(some != 0).long(), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main(argv=None):
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--plays", type=int, default=None, help="how many plays are private")
    parser.add_argument("--warm-up", type=int, default=300, help="steps on public plays")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=100, help="roles in a step")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--length", type=int, default=48, help="tokens of a row")
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    private, public = roles(args.plays)
    half = len(public) // 2  # one half to warm up on, one to measure on
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        [each["text"] for each in public[:half]],
        vocab_size=1000,
        special_tokens=["<pad>"],
        show_progress=False,
    )

    def rows(lines):
        texts = [each["text"] for each in lines]
        tokens = [found.ids for found in tokenizer.encode_batch(texts)]
        return datasets.Dataset.from_dict({"input_ids": tokens})

    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=tokenizer.get_vocab_size(),
            n_positions=args.length,
            n_embd=64,
            n_layer=2,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )
    warm_up(model, rows(public[:half]), args.warm_up, args.length)
    adapters = peft.LoraConfig(
        task_type="CAUSAL_LM", r=args.rank, lora_alpha=8 * args.rank,
        target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True,
    )  # fmt: skip
    adapted = peft.get_peft_model(model, adapters)
    adapted.print_trainable_parameters()

    trainer = pv.huggingface.PrivateTrainer(
        adapted,
        train_dataset=rows(private),
        eval_dataset=rows(public[half:]),
        max_length=args.length,
        groups=[each["role"] for each in private],
        rows_per_unit=4,
        unit="role",
        method=pv.methods.DPAdam(lr=args.lr, clip=args.clip),
        batch_size=args.batch_size,
        steps=args.steps,
        budget=pv.Budget(args.epsilon, args.delta),
    )
    before = trainer.evaluate()["eval_perplexity"]
    after = trainer.train(progress=True).evaluate()["eval_perplexity"]
    assert math.isfinite(after)
    print(f"perplexity of public plays: {before:.1f} before, {after:.1f} after")
    print(trainer.statement())
    return before, after, trainer.epsilon()


if __name__ == "__main__":
    main()
