"""Feelings of sentences: a small BERT, fine-tuned privately with Hugging Face's tools.

The sentences are SST-2's where PRIVADA_DATA has them, else made up. With --model, weights are
loaded from a folder or from the hub; they have to be public. A new model learns the made-up
sentences, and little of SST-2 within such a budget: start from public weights there.

    python examples/sst2_classifier.py --epochs 3
    python examples/sst2_classifier.py --model prajjwal1/bert-tiny --lr 0.0005
"""

import argparse

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import datasets
import privada as pv
from data import feelings


def tokenizer_of(texts, words):
    """Train a tokenizer on public texts."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=words, special_tokens=special, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]"
    )


def main(argv=None):
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", help="a folder or a name on the hub; by default a new one")
    parser.add_argument("--rows", type=int, default=None, help="how many sentences to train on")
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--length", type=int, default=32, help="tokens of a sentence")
    parser.add_argument("--output", help="a folder for the model and its statement")
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    private, public = (datasets.Dataset.from_list(part) for part in feelings(args.rows))
    if args.model:
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(args.model)
    else:
        tokenizer = tokenizer_of(public["sentence"], 2000)
        config = transformers.BertConfig(
            vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=1,
            num_attention_heads=4, intermediate_size=128, max_position_embeddings=128,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(config)

    def tokenize(rows):
        return tokenizer(rows["sentence"], return_token_type_ids=False)

    trainer = pv.huggingface.PrivateTrainer(
        model,
        train_dataset=private.map(tokenize, batched=True),
        eval_dataset=public.map(tokenize, batched=True),
        processing_class=tokenizer,
        max_length=args.length,
        method=pv.methods.DPAdam(lr=args.lr, clip=args.clip),
        batch_size=args.batch_size,
        epochs=args.epochs,
        budget=pv.Budget(args.epsilon, args.delta),
        unit="sentence",
    )
    print("before:", trainer.evaluate())
    found = trainer.train(progress=True).evaluate()
    print(f"after: {found}, epsilon {trainer.epsilon():.2f}")
    if args.output:
        print("saved in", trainer.save_model(args.output))
    return found, trainer.epsilon()


if __name__ == "__main__":
    main()
