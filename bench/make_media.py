#!/usr/bin/env python3
"""Models with encoders of real geometry and random weights beside a small text model, to measure and try encoders with.

    make_media.py NAME FOLDER        NAME: gemma3, gemma4-e2b, gemma4-31b, mllama, sound (E2B's conformer)

Needs numpy only. `cygnet complete -m FOLDER --ids 2,IMAGE_ID -n 1 --image FILE --json` then says how long a picture takes (encode_ms);
a sound: --ids 2,251 --audio FILE.
"""
import json
import os
import struct
import sys

import numpy as np

RNG = np.random.default_rng(1)
TEXT = 64  # width of the text model


def gemma3():
    d, ffn, layers = 1152, 4304, 27
    yield "config", {"model_type": "gemma3", "image_token_index": 250, "boi_token_index": 248, "eoi_token_index": 249, "mm_tokens_per_image": 256,
                     "text_config": {"model_type": "gemma3_text", "vocab_size": 256, "hidden_size": TEXT, "intermediate_size": 64, "num_hidden_layers": 2,
                                     "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 512},
                     "vision_config": {"hidden_size": d, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": 16, "patch_size": 14,
                                       "image_size": 896}}
    v = "vision_tower.vision_model."
    yield v + "embeddings.patch_embedding.weight", (d, 3, 14, 14)
    yield v + "embeddings.patch_embedding.bias", (d,)
    yield v + "embeddings.position_embedding.weight", (4096, d)
    for n in range(layers):
        p = f"{v}encoder.layers.{n}."
        for name in ("layer_norm1", "layer_norm2"):
            yield p + name + ".weight", (d,)
            yield p + name + ".bias", (d,)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield p + f"self_attn.{name}.weight", (d, d)
            yield p + f"self_attn.{name}.bias", (d,)
        yield p + "mlp.fc1.weight", (ffn, d)
        yield p + "mlp.fc1.bias", (ffn,)
        yield p + "mlp.fc2.weight", (d, ffn)
        yield p + "mlp.fc2.bias", (d,)
    yield v + "post_layernorm.weight", (d,)
    yield v + "post_layernorm.bias", (d,)
    yield "multi_modal_projector.mm_input_projection_weight", (d, TEXT)
    yield "multi_modal_projector.mm_soft_emb_norm.weight", (d,)
    yield from gemma_text("language_model.model.", 2, 64, 32, post="post_feedforward_layernorm")


def gemma_text(prefix, layers, ffn, head, post, scalar=False):
    yield prefix + "embed_tokens.weight", (256, TEXT)
    yield prefix + "norm.weight", (TEXT,)
    for n in range(layers):
        p = f"{prefix}layers.{n}."
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", post):
            yield p + name + ".weight", (TEXT,)
        yield p + "self_attn.q_proj.weight", (2 * head, TEXT)
        yield p + "self_attn.k_proj.weight", (head, TEXT)
        yield p + "self_attn.v_proj.weight", (head, TEXT)
        yield p + "self_attn.o_proj.weight", (TEXT, 2 * head)
        yield p + "self_attn.q_norm.weight", (head,)
        yield p + "self_attn.k_norm.weight", (head,)
        yield p + "mlp.gate_proj.weight", (ffn, TEXT)
        yield p + "mlp.up_proj.weight", (ffn, TEXT)
        yield p + "mlp.down_proj.weight", (TEXT, ffn)
        if scalar:
            yield p + "layer_scalar", (1,)


GEMMA4_TEXT = {"text_config": {"model_type": "gemma4_text", "vocab_size": 256, "vocab_size_per_layer_input": 256, "hidden_size": TEXT,
                               "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
                               "global_head_dim": 32, "sliding_window": 512, "hidden_size_per_layer_input": 0,
                               "layer_types": ["sliding_attention", "full_attention"]}}


def clipped_linears(prefix, shapes, clipped=True):
    for name, shape in shapes.items():
        yield prefix + name + ".linear.weight", shape
        for bound in ("input_min", "input_max", "output_min", "output_max") if clipped else ():
            yield f"{prefix}{name}.{bound}", -20.0 if bound.endswith("min") else 20.0


def sound():
    d, layers, out = 1024, 12, 1536
    yield "config", {"model_type": "gemma4", "audio_token_id": 251, "boa_token_id": 248, "eoa_token_id": 249, "vision_config": None, **GEMMA4_TEXT,
                     "audio_config": {"model_type": "gemma4_audio", "hidden_size": d, "num_hidden_layers": layers, "num_attention_heads": 8,
                                      "output_proj_dims": out, "use_clipped_linears": True}}
    a = "model.audio_tower.subsample_conv_projection."
    for n, shape in enumerate(((128, 1, 3, 3), (32, 128, 3, 3))):
        yield f"{a}layer{n}.conv.weight", shape
        yield f"{a}layer{n}.norm.weight", (shape[0],)
    yield a + "input_proj_linear.weight", (d, 1024)
    for n in range(layers):
        p = f"model.audio_tower.layers.{n}."
        shapes = {f"self_attn.{x}": (d, d) for x in ("q_proj", "k_proj", "v_proj", "post")}
        shapes |= {"lconv1d.linear_start": (2 * d, d), "lconv1d.linear_end": (d, d)}
        for which in ("feed_forward1", "feed_forward2"):
            shapes |= {which + ".ffw_layer_1": (4 * d, d), which + ".ffw_layer_2": (d, 4 * d)}
            for name in ("pre_layer_norm", "post_layer_norm"):
                yield f"{p}{which}.{name}.weight", (d,)
        yield from clipped_linears(p, shapes)
        for name in ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"):
            yield p + name + ".weight", (d,)
        yield p + "lconv1d.depthwise_conv1d.weight", (d, 1, 5)
        yield p + "self_attn.relative_k_proj.weight", (d, d)
        yield p + "self_attn.per_dim_scale", (d // 8,)
    yield "model.audio_tower.output_proj.weight", (out, d)
    yield "model.audio_tower.output_proj.bias", (out,)
    yield "model.embed_audio.embedding_projection.weight", (TEXT, out)
    yield from gemma_text("model.language_model.", 2, 64, 32, "post_feedforward_layernorm", True)


def gemma4(d, ffn, layers, heads, head, clipped, standardize):
    yield "config", {"model_type": "gemma4", "image_token_id": 250, "boi_token_id": 248, "eoi_token_id": 249, "audio_config": None, **GEMMA4_TEXT,
                     "vision_config": {"hidden_size": d, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
                                       "num_key_value_heads": heads, "head_dim": head, "use_clipped_linears": clipped, "standardize": standardize}}
    yield "model.vision_tower.patch_embedder.input_proj.weight", (d, 768)
    yield "model.vision_tower.patch_embedder.position_embedding_table", (2, 10240, d)
    for n in range(layers):
        p = f"model.vision_tower.encoder.layers.{n}."
        for name in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            yield p + name + ".weight", (d,)
        for name in ("q", "k"):
            yield p + f"self_attn.{name}_norm.weight", (head,)
        shapes = {f"self_attn.{x}_proj": (heads * head, d) for x in "qkv"}
        shapes |= {"self_attn.o_proj": (d, heads * head), "mlp.gate_proj": (ffn, d), "mlp.up_proj": (ffn, d), "mlp.down_proj": (d, ffn)}
        yield from clipped_linears(p, shapes, clipped)
    if standardize:
        yield "model.vision_tower.std_bias", (d,)
        yield "model.vision_tower.std_scale", (d,)
    yield "model.embed_vision.embedding_projection.weight", (TEXT, d)
    yield from gemma_text("model.language_model.", 2, 64, 32, "post_feedforward_layernorm", True)


def mllama():
    d, ffn, tile = 1280, 5120, 560
    rows = (tile // 14) ** 2 + 1
    yield "config", {"model_type": "mllama", "image_token_index": 256,
                     "text_config": {"model_type": "mllama_text_model", "vocab_size": 256, "hidden_size": TEXT, "intermediate_size": 64,
                                     "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "cross_attention_layers": [1],
                                     "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
                     "vision_config": {"image_size": tile}}
    v = "vision_model."
    yield v + "patch_embedding.weight", (d, 3, 14, 14)
    yield v + "class_embedding", (d,)
    yield v + "gated_positional_embedding.embedding", (rows, d)
    yield v + "gated_positional_embedding.gate", 0.3
    yield v + "gated_positional_embedding.tile_embedding.weight", "tiles", (rows * d)
    for which in ("pre", "post"):
        yield v + f"{which}_tile_positional_embedding.embedding.weight", "tiles", d
        yield v + f"{which}_tile_positional_embedding.gate", 0.3
        yield v + f"layernorm_{which}.weight", (d,)
        yield v + f"layernorm_{which}.bias", (d,)
    for tower, layers in (("transformer", 32), ("global_transformer", 8)):
        for n in range(layers):
            p = f"{v}{tower}.layers.{n}."
            for name in ("input_layernorm", "post_attention_layernorm"):
                yield p + name + ".weight", (d,)
                yield p + name + ".bias", (d,)
            for x in "qkvo":
                yield p + f"self_attn.{x}_proj.weight", (d, d)
            yield p + "mlp.fc1.weight", (ffn, d)
            yield p + "mlp.fc1.bias", (ffn,)
            yield p + "mlp.fc2.weight", (d, ffn)
            yield p + "mlp.fc2.bias", (d,)
            if tower == "global_transformer":
                yield p + "gate_attn", 0.3
                yield p + "gate_ffn", 0.3
    yield "multi_modal_projector.weight", (TEXT, 6 * d)
    yield "multi_modal_projector.bias", (TEXT,)
    t = "language_model.model."
    yield t + "embed_tokens.weight", (264, TEXT)
    yield t + "norm.weight", (TEXT,)
    yield "language_model.lm_head.weight", (256, TEXT)
    for n, kind in enumerate(("self_attn", "cross_attn")):
        p = f"{t}layers.{n}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield p + name + ".weight", (TEXT,)
        yield p + kind + ".q_proj.weight", (TEXT, TEXT)
        yield p + kind + ".k_proj.weight", (TEXT // 2, TEXT)
        yield p + kind + ".v_proj.weight", (TEXT // 2, TEXT)
        yield p + kind + ".o_proj.weight", (TEXT, TEXT)
        for name in ("gate_proj", "up_proj"):
            yield p + f"mlp.{name}.weight", (64, TEXT)
        yield p + "mlp.down_proj.weight", (TEXT, 64)
        if kind == "cross_attn":
            for name in ("q_norm", "k_norm"):
                yield p + f"cross_attn.{name}.weight", (TEXT // 2,)
            for name in ("cross_attn_attn_gate", "cross_attn_mlp_gate"):
                yield p + name, 0.3


MODELS = {"gemma3": gemma3, "gemma4-e2b": lambda: gemma4(768, 3072, 16, 12, 64, True, False),
          "gemma4-31b": lambda: gemma4(1152, 4304, 27, 16, 72, False, True), "mllama": mllama, "sound": sound}


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def values(item):
    """(name, shape, float32 values)"""
    name, what = item[:2]
    if isinstance(what, float):
        return name, [1], np.full(1, what, np.float32)
    if what == "tiles":  # [ratio, tile * rows * width]: what stands for tiles that a ratio does not use is 0
        ratios = [(h, w) for h in range(1, 5) for w in range(1, 5) if h * w <= 4]
        table = np.zeros((9, 4, item[2]), np.float32)
        for i, (h, w) in enumerate(ratios):
            table[i + 1, : h * w] = RNG.standard_normal((h * w, item[2]), np.float32) * 0.3
        return name, [9, 4 * item[2]], table
    fan_in = int(np.prod(what[1:])) if len(what) > 1 else 1
    x = RNG.standard_normal(what, np.float32)
    if len(what) > 1:
        x *= 1 / np.sqrt(fan_in)
    else:
        x = 1 + 0.1 * x if "norm" in name or "scal" in name else 0.1 * x
    return name, list(what), x


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS:
        sys.exit(__doc__)
    os.makedirs(sys.argv[2], exist_ok=True)
    head, at, parts = {}, 0, os.path.join(sys.argv[2], "data.part")
    with open(parts, "wb") as out:
        for item in MODELS[sys.argv[1]]():
            if item[0] == "config":
                json.dump(item[1], open(os.path.join(sys.argv[2], "config.json"), "w"), indent=1)
                continue
            name, shape, x = values(item)
            raw = bf16(x).tobytes()
            out.write(raw)
            head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(raw)]}
            at += len(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(sys.argv[2], "model.safetensors"), "wb") as out, open(parts, "rb") as data:
        out.write(struct.pack("<Q", len(text)) + text)
        while block := data.read(1 << 24):
            out.write(block)
    os.remove(parts)
    print(f"{sys.argv[2]}: {at / 1e6:.0f} MB")


main()
