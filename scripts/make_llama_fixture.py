"""Writes tests/models/llama/tiny: a tiny random Llama as transformers saves it, with its loss, logits and gradients.

    pip install transformers; python scripts/make_llama_fixture.py

The folder is config.json, model.safetensors and case.safetensors: ids [3, 23], labels (already shifted, -100 = not scored), logits,
the mean loss, and the gradient of each parameter under its own name. Computed in double, but for norms and
rotary angles, which transformers always computes in float32: good to about 1e-6.
"""
import pathlib

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = dict(vocab_size=41, hidden_size=12, intermediate_size=17, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
              head_dim=6, rms_norm_eps=1e-5, rope_theta=1000.0, max_position_embeddings=64, initializer_range=0.2)


def main():
    torch.manual_seed(7)
    folder = pathlib.Path(__file__).resolve().parent.parent / "tests/models/llama/tiny"
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    ids = torch.randint(0, CONFIG["vocab_size"], (3, 23))
    labels = torch.cat([ids[:, 1:], torch.full((3, 1), -100)], 1)
    labels[1, 4:9] = -100
    model = model.double()
    logits = model(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    case = {"ids": ids, "labels": labels, "logits": logits.detach().float(), "loss": loss.detach()}
    case |= {name: parameter.grad.float() for name, parameter in model.named_parameters()}
    save_file({name: tensor.contiguous() for name, tensor in case.items()}, folder / "case.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)


if __name__ == "__main__":
    main()
