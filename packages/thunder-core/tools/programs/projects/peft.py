# SPDX-License-Identifier: Apache-2.0
"""PEFT: a small model with each of the methods of the documentation's list, in a training step."""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("peft", rank=1330, requires=["peft==0.21.*", "transformers==5.23.*", "accelerate==1.15.*"])

_LLAMA = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 64}  # fmt: skip


def _method(name: str, config: str, **options: Any) -> None:
    def build() -> Any:
        import peft
        import transformers

        base = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA))
        model = peft.get_peft_model(base, getattr(peft, config)(task_type="CAUSAL_LM", **options))

        def inputs() -> Any:
            ids = torch.randint(3, 64, (2, 10))
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}

        return model, inputs

    PROJECT.add(name, f"documentation, {config}", build, trains=True)


_PROJECTIONS = {"target_modules": ["q_proj", "v_proj"]}
_method("LoRA", "LoraConfig", r=4, lora_alpha=8, lora_dropout=0.1, **_PROJECTIONS)
_method("DoRA", "LoraConfig", r=4, use_dora=True, **_PROJECTIONS)
_method("rsLoRA", "LoraConfig", r=4, use_rslora=True, **_PROJECTIONS)
_method("AdaLoRA", "AdaLoraConfig", total_step=100, init_r=4, target_r=2, **_PROJECTIONS)
_method("LoHa", "LoHaConfig", r=4, alpha=8, **_PROJECTIONS)
_method("LoKr", "LoKrConfig", r=4, alpha=8, **_PROJECTIONS)
_method("OFT", "OFTConfig", oft_block_size=8, **_PROJECTIONS)
_method("BOFT", "BOFTConfig", boft_block_size=8, **_PROJECTIONS)
_method("VeRA", "VeraConfig", r=4, **_PROJECTIONS)
_method("FourierFT", "FourierFTConfig", n_frequency=10, **_PROJECTIONS)
_method("IA3", "IA3Config", target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])
_method("prompt tuning", "PromptTuningConfig", num_virtual_tokens=4)
_method("prefix tuning", "PrefixTuningConfig", num_virtual_tokens=4)
_method("p-tuning", "PromptEncoderConfig", num_virtual_tokens=4, encoder_hidden_size=16)
_method("LN tuning", "LNTuningConfig")
