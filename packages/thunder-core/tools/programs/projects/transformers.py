# SPDX-License-Identifier: Apache-2.0
"""Transformers: models that `nox -s models` does not have, with the heads that their documentation shows.

The models are those of the documentation's lists of text, vision, audio and time series models, in its order, as far as
a small configuration is enough to build them.
"""

from __future__ import annotations

from typing import Any

import torch

from programs.program import Project

PROJECT = Project("transformers", rank=246, requires=["transformers==5.23.*"], limit=40)

_TEXT = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 64, "max_position_embeddings": 64}  # fmt: skip
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _ids(low: int = 4) -> torch.Tensor:
    return torch.randint(low, 64, (2, 12))


def _add(name: str, model: str, config: str, options: dict[str, Any], inputs: Any, *, trains: bool = False) -> None:
    def build() -> Any:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(**options))
        return made.train(trains), inputs

    PROJECT.add(name, f"documentation, {model}", build, trains=trains)


def _text_inputs() -> Any:
    ids = _ids()
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _labelled(classes: int) -> Any:
    return lambda: {**_text_inputs(), "labels": torch.randint(0, classes, (2,))}


def _token_labelled(classes: int) -> Any:
    return lambda: {**_text_inputs(), "labels": torch.randint(0, classes, (2, 12))}


_HEADS = {
    "ForSequenceClassification": _labelled(2),
    "ForTokenClassification": _token_labelled(2),
    "ForMaskedLM": _token_labelled(64),
    "ForQuestionAnswering": lambda: {**_text_inputs(), "start_positions": torch.randint(0, 9, (2,)),
                                     "end_positions": torch.randint(0, 9, (2,))},
    "ForMultipleChoice": lambda: {"input_ids": torch.randint(4, 64, (2, 3, 12)), "labels": torch.randint(0, 3, (2,))},
}  # fmt: skip
for _head, _inputs in _HEADS.items():
    _add(f"Bert{_head}", f"Bert{_head}", "BertConfig", _TEXT, _inputs, trains=True)
_add("ConvBert", "ConvBertModel", "ConvBertConfig", {**_TEXT, "embedding_size": 32}, _text_inputs)
_add("Funnel", "FunnelModel", "FunnelConfig", {"vocab_size": 64, "block_sizes": [1, 1], "d_model": 32, "n_head": 4,
     "d_head": 8, "d_inner": 64}, _text_inputs)  # fmt: skip
_add("IBert", "IBertModel", "IBertConfig", {**_TEXT, "quant_mode": False}, _text_inputs)
_add("MegatronBert", "MegatronBertModel", "MegatronBertConfig", _TEXT, _text_inputs)
_add("MobileBert", "MobileBertModel", "MobileBertConfig", {**_TEXT, "embedding_size": 16,
     "intra_bottleneck_size": 16, "hidden_size": 32}, _text_inputs)  # fmt: skip
_add("Nystromformer", "NystromformerModel", "NystromformerConfig", {**_TEXT, "num_landmarks": 12,
     "segment_means_seq_len": 12}, _text_inputs)  # fmt: skip
_add("RemBert", "RemBertModel", "RemBertConfig", {**_TEXT, "input_embedding_size": 16, "output_embedding_size": 16},
     _text_inputs)  # fmt: skip
_add("RoFormer", "RoFormerModel", "RoFormerConfig", _TEXT, _text_inputs)
_add("SqueezeBert", "SqueezeBertModel", "SqueezeBertConfig", {**_TEXT, "embedding_size": 32}, _text_inputs)
_add("XLM", "XLMModel", "XLMConfig", {"vocab_size": 64, "emb_dim": 32, "n_layers": 2, "n_heads": 4}, _text_inputs)
_add("XLNet", "XLNetModel", "XLNetConfig", {"vocab_size": 64, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
     _text_inputs)  # fmt: skip
_add("BigBird", "BigBirdModel", "BigBirdConfig", {**_TEXT, "attention_type": "original_full"}, _text_inputs)
_add("Canine", "CanineModel", "CanineConfig", {**_TEXT, "num_hash_buckets": 64, "local_transformer_stride": 4,
     "downsampling_rate": 4}, lambda: {"input_ids": torch.randint(4, 64, (2, 16))})  # fmt: skip
_add("Yoso", "YosoModel", "YosoConfig", {**_TEXT, "use_expectation": True}, _text_inputs)
_add("Reformer", "ReformerModel", "ReformerConfig", {
    "vocab_size": 64, "attention_head_size": 8, "hidden_size": 32, "num_attention_heads": 4, "feed_forward_size": 64,
    "attn_layers": ["local", "local"], "local_attn_chunk_length": 4, "axial_pos_shape": (4, 4),
    "axial_pos_embds_dim": (16, 16), "is_decoder": False,
    "hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0,  # their seeds are the operating system's
}, lambda: {"input_ids": torch.randint(4, 64, (2, 16))}, trains=True)  # fmt: skip
_add("CTRL", "CTRLModel", "CTRLConfig", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 64},
     lambda: {"input_ids": _ids()})  # fmt: skip
_add("OpenAIGPT", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", {"vocab_size": 64, "n_embd": 32, "n_layer": 2,
     "n_head": 4}, lambda: {"input_ids": (x := _ids()), "labels": x}, trains=True)  # fmt: skip
_add("XGLM", "XGLMForCausalLM", "XGLMConfig", {"vocab_size": 64, "d_model": 32, "num_layers": 2, "attention_heads": 4,
     "ffn_dim": 64}, lambda: {"input_ids": (x := _ids()), "labels": x}, trains=True)  # fmt: skip
_add("BioGpt", "BioGptForCausalLM", "BioGptConfig", _TEXT, _text_inputs)
_add("Persimmon", "PersimmonForCausalLM", "PersimmonConfig", _TEXT, _text_inputs)
_add("CodeGen", "CodeGenForCausalLM", "CodeGenConfig", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4,
     "rotary_dim": 4, "n_positions": 64}, _text_inputs)  # fmt: skip
_add("GPTBigCode", "GPTBigCodeForCausalLM", "GPTBigCodeConfig", {"vocab_size": 64, "n_embd": 32, "n_layer": 2,
     "n_head": 4}, _text_inputs)  # fmt: skip

_SEQ2SEQ = {"vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
            "max_position_embeddings": 64}  # fmt: skip


def _seq2seq_inputs() -> Any:
    return {**_text_inputs(), "labels": _ids()}


for _name in ("M2M100", "PLBart", "BlenderbotSmall", "Blenderbot"):
    _add(_name, f"{_name}ForConditionalGeneration", f"{_name}Config", _SEQ2SEQ, _seq2seq_inputs, trains=True)
_add("UMT5", "UMT5ForConditionalGeneration", "UMT5Config", {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64,
     "num_layers": 2, "num_heads": 4}, _seq2seq_inputs, trains=True)  # fmt: skip
_add("ProphetNet", "ProphetNetForConditionalGeneration", "ProphetNetConfig", {"vocab_size": 64, "hidden_size": 32,
     "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
     "num_decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}, _seq2seq_inputs)  # fmt: skip

_IMAGE = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 64}  # fmt: skip


def _pixels() -> Any:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _big_pixels() -> Any:
    return {"pixel_values": torch.randn(1, 3, 64, 64)}


def _two_images() -> Any:
    return {"pixel_values": torch.randn(2, 3, 64, 64)}  # batch norm of one position cannot train on one image


_add("ViTMAE", "ViTMAEForPreTraining", "ViTMAEConfig", {**_IMAGE, "decoder_hidden_size": 32,
     "decoder_num_attention_heads": 4, "decoder_num_hidden_layers": 1, "decoder_intermediate_size": 64},
     _pixels)  # fmt: skip
_add("ViTMSN", "ViTMSNModel", "ViTMSNConfig", _IMAGE, _pixels)
_add("YOLOS", "YolosForObjectDetection", "YolosConfig", {**_IMAGE, "image_size": [32, 32], "num_detection_tokens": 4},
     _pixels)  # fmt: skip
_add("DPT", "DPTForDepthEstimation", "DPTConfig", {**_IMAGE, "num_hidden_layers": 4,
     "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 16, 16, 16], "fusion_hidden_size": 16},
     _pixels)  # fmt: skip
_add("GLPN", "GLPNForDepthEstimation", "GLPNConfig", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
     "num_attention_heads": [1, 2, 4, 4], "decoder_hidden_size": 16}, _big_pixels)  # fmt: skip
_add("LeViT", "LevitModel", "LevitConfig", {"image_size": 64, "hidden_sizes": [16, 24, 32], "depths": [1, 1, 1],
     "num_attention_heads": [2, 3, 4], "key_dim": [8, 8, 8]}, _two_images, trains=True)  # fmt: skip
_add("MobileNetV1", "MobileNetV1Model", "MobileNetV1Config", {"depth_multiplier": 0.25}, _pixels)
_add("SwiftFormer", "SwiftFormerModel", "SwiftFormerConfig", {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32]},
     _big_pixels)  # fmt: skip
_add("Swin2SR", "Swin2SRModel", "Swin2SRConfig", {"image_size": 32, "embed_dim": 24, "depths": [1, 1],
     "num_heads": [2, 2], "window_size": 4}, _pixels)  # fmt: skip
_add("TimeSformer", "TimesformerModel", "TimesformerConfig", {**_IMAGE, "num_frames": 2},
     lambda: {"pixel_values": torch.randn(1, 2, 3, 32, 32)})  # fmt: skip
_add("VideoMAE", "VideoMAEModel", "VideoMAEConfig", {**_IMAGE, "num_frames": 4},
     lambda: {"pixel_values": torch.randn(1, 4, 3, 32, 32)})  # fmt: skip
_add("ViViT", "VivitModel", "VivitConfig", {**_IMAGE, "num_frames": 4, "tubelet_size": [2, 8, 8]},
     lambda: {"pixel_values": torch.randn(1, 4, 3, 32, 32)})  # fmt: skip
_add("ImageGPT", "ImageGPTModel", "ImageGPTConfig", {"vocab_size": 65, "n_positions": 64, "n_embd": 32, "n_layer": 2,
     "n_head": 4}, lambda: {"input_ids": _ids()})  # fmt: skip
_add("BiT", "BitModel", "BitConfig", {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1],
     "num_groups": 4}, _pixels)  # fmt: skip
_add("AST", "ASTModel", "ASTConfig", {**{k: v for k, v in _IMAGE.items() if k != "image_size"}, "max_length": 32,
     "num_mel_bins": 16}, lambda: {"input_values": torch.randn(2, 32, 16)})  # fmt: skip

_SPEECH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
           "conv_dim": (8, 8), "conv_kernel": (8, 4), "conv_stride": (4, 4), "num_feat_extract_layers": 2,
           "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "vocab_size": 32}  # fmt: skip
_add("Data2VecAudio", "Data2VecAudioModel", "Data2VecAudioConfig", {**_SPEECH, "num_conv_pos_embeddings": 2},
     lambda: {"input_values": torch.randn(2, 400)})  # fmt: skip
_add("UniSpeech", "UniSpeechModel", "UniSpeechConfig", _SPEECH, lambda: {"input_values": torch.randn(2, 400)})
_add("SEW-D", "SEWDModel", "SEWDConfig", {**_SPEECH, "squeeze_factor": 2, "max_position_embeddings": 64},
     lambda: {"input_values": torch.randn(2, 400)})  # fmt: skip
_add("Speech2Text", "Speech2TextForConditionalGeneration", "Speech2TextConfig", {
    **{k: v for k, v in _SEQ2SEQ.items() if k != "max_position_embeddings"}, "input_feat_per_channel": 16,
    "conv_channels": 16,
}, lambda: {"input_features": torch.randn(2, 24, 16), "labels": _ids()}, trains=True)  # fmt: skip


def _series() -> Any:
    return {"past_values": torch.randn(2, 27), "past_time_features": torch.randn(2, 27, 1),
            "past_observed_mask": torch.ones(2, 27), "future_values": torch.randn(2, 4),
            "future_time_features": torch.randn(2, 4, 1)}  # fmt: skip


_add("TimeSeriesTransformer", "TimeSeriesTransformerForPrediction", "TimeSeriesTransformerConfig", {
    "prediction_length": 4, "context_length": 20, "num_time_features": 1, "d_model": 16, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
}, _series, trains=True)  # fmt: skip
_add("PatchTST", "PatchTSTForPrediction", "PatchTSTConfig", {
    "num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 4,
    "d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 32,
}, lambda: {"past_values": torch.randn(2, 32, 2), "future_values": torch.randn(2, 4, 2)}, trains=True)  # fmt: skip
_add("DecisionTransformer", "DecisionTransformerModel", "DecisionTransformerConfig", {
    "state_dim": 5, "act_dim": 2, "hidden_size": 32, "n_layer": 2, "n_head": 4, "max_ep_len": 64,
}, lambda: {
    "states": torch.randn(1, 6, 5), "actions": torch.randn(1, 6, 2), "rewards": torch.randn(1, 6, 1),
    "returns_to_go": torch.randn(1, 6, 1), "timesteps": torch.arange(6)[None], "attention_mask": torch.ones(1, 6),
})  # fmt: skip


@PROJECT.program("generate", "README, text generation", trains=False)
def _generate() -> Any:
    import transformers

    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, **_SPECIAL)
    model = transformers.GPT2LMHeadModel(config).eval()

    def generate(ids: Any) -> Any:
        return model.generate(ids, max_new_tokens=5, do_sample=False)

    return generate, lambda: (_ids(),), model
