#!/usr/bin/env python3
"""cygnet.h from Python, with ctypes alone: continue a text, print it as it is written.

    ./complete.py model.gguf 'The capital of France is' 16

The classes are the header's structs, field by field and in its order: they hold for the version that is asked for below, and for no other.
CYGNET_LIBRARY names another file than the installed libcygnet.so.0.
"""
import ctypes, os, sys
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_longlong, c_size_t, c_uint64, c_void_p

WRITTEN_FOR = "0.1."


class Error(ctypes.Structure):
    _fields_ = [("status", c_int), ("exit_status", c_int), ("message", c_char * 512)]


class Options(ctypes.Structure):
    _fields_ = [
        ("model", c_char_p), ("threads", c_int), ("ctx_tokens", c_int), ("kv_type", c_char_p), ("isa", c_char_p), ("attn", c_char_p), ("backend", c_char_p),
        ("device_id", c_int), ("page_tokens", c_int), ("chunk_tokens", c_int), ("max_running", c_int), ("max_queued", c_int), ("step_ms", c_int),
        ("swa_full_ratio", c_double), ("mem_bytes", c_size_t), ("mem_fraction", c_double), ("chat_template", c_char_p), ("quant", c_char_p),
        ("draft_tokens", c_int), ("draft_model", c_char_p), ("mmproj", c_char_p), ("disable_media", c_int), ("media_bytes", c_size_t),
        ("image_pixels", c_longlong), ("disable_prefix_cache", c_int), ("disable_shortlist", c_int), ("disable_graph", c_int), ("take_memory", c_int), ("ignore_numa", c_int),
        ("quiet", c_int),
    ]


class Sampling(ctypes.Structure):
    _fields_ = [
        ("temperature", c_double), ("top_k", c_int), ("top_p", c_double), ("min_p", c_double), ("frequency_penalty", c_double),
        ("presence_penalty", c_double), ("repetition_penalty", c_double), ("has_seed", c_int), ("seed", c_uint64), ("min_tokens", c_int),
        ("bias", c_void_p), ("n_bias", c_size_t),
    ]


class Request(ctypes.Structure):
    _fields_ = [
        ("prompt", POINTER(c_int32)), ("n_prompt", c_size_t), ("media", c_void_p), ("n_media", c_size_t), ("max_tokens", c_int), ("sampling", Sampling),
        ("stop", POINTER(c_char_p)), ("n_stop", c_size_t), ("stop_ids", POINTER(c_int32)), ("n_stop_ids", c_size_t), ("keep_stop", c_int),
        ("ignore_eos", c_int), ("show_special", c_int), ("marks", c_int), ("grammar", c_void_p), ("thoughts", c_int), ("thinking_budget", c_int),
        ("logprobs", c_int), ("prompt_logprobs", c_int), ("priority", c_int), ("cache_salt", c_char_p), ("n_cache_salt", c_size_t),
        ("on_logits", c_void_p), ("on_hidden", c_void_p), ("callback_ctx", c_void_p), ("user", c_void_p),
    ]


class Token(ctypes.Structure):
    _fields_ = [("id", c_int32), ("logprob", c_float), ("top", c_void_p), ("n_top", c_int)]


class Event(ctypes.Structure):
    _fields_ = [
        ("request", c_uint64), ("user", c_void_p), ("text", c_void_p), ("n_text", c_size_t), ("marks", c_void_p), ("n_marks", c_size_t),
        ("tokens", POINTER(Token)), ("n_tokens", c_size_t), ("prompt", POINTER(Token)), ("n_prompt", c_size_t), ("finish", c_int), ("matched_stop", c_int),
        ("matched_id", c_int32), ("error", Error), ("seed", c_uint64), ("reasoning_tokens", c_int), ("n_media", c_int), ("n_media_cached", c_int),
        ("encode_ms", c_double), ("prompt_tokens", c_int), ("cached_tokens", c_int), ("completion_tokens", c_int), ("n_retractions", c_int),
        ("queue_ms", c_double), ("prefill_ms", c_double), ("decode_ms", c_double),
    ]


FINISH_ERROR = 4


def load():
    """The library, its functions declared; another version's structs would be read wrongly, so it is refused."""
    lib = ctypes.CDLL(os.environ.get("CYGNET_LIBRARY", "libcygnet.so.0"))
    declare = {
        "cygnet_version": (c_char_p, []),
        "cygnet_open": (c_void_p, [POINTER(Options), POINTER(Error)]),
        "cygnet_close": (None, [c_void_p]),
        "cygnet_free": (None, [c_void_p]),
        "cygnet_encode": (c_int, [c_void_p, c_char_p, c_size_t, c_int, c_int, POINTER(POINTER(c_int32)), POINTER(c_size_t)]),
        "cygnet_submit": (c_uint64, [c_void_p, POINTER(Request), POINTER(Error)]),
        "cygnet_step": (c_int, [c_void_p]),
        "cygnet_next_event": (c_int, [c_void_p, POINTER(Event)]),
        "cygnet_finish_name": (c_char_p, [c_int]),
    }
    for name, (result, arguments) in declare.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    version = lib.cygnet_version().decode()
    if not version.startswith(WRITTEN_FOR):
        sys.exit("complete.py: written for cygnet %sx, found %s" % (WRITTEN_FOR, version))
    return lib


class Failed(Exception):
    def __init__(self, e):
        super().__init__(e.message.decode())
        self.exit_status = e.exit_status


class Model:
    def __init__(self, lib, path, **options):
        self.lib, e = lib, Error()
        self.handle = lib.cygnet_open(byref(Options(model=os.fsencode(path), quiet=1, **options)), byref(e))
        if not self.handle:
            raise Failed(e)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.cygnet_close(self.handle)

    def complete(self, text, max_tokens):
        """Yields pieces of the answer as they come, then returns the last event."""
        lib, e, ev = self.lib, Error(), Event()
        ids, n = POINTER(c_int32)(), c_size_t()
        data = text.encode()
        if lib.cygnet_encode(self.handle, data, len(data), 0, 1, byref(ids), byref(n)):
            raise ValueError("the text is too long")
        accepted = lib.cygnet_submit(self.handle, byref(Request(prompt=ids, n_prompt=n, max_tokens=max_tokens)), byref(e))
        lib.cygnet_free(ids)  # borrowed for the call only
        if not accepted:
            raise Failed(e)
        while lib.cygnet_step(self.handle):
            while lib.cygnet_next_event(self.handle, byref(ev)):
                yield ctypes.string_at(ev.text, ev.n_text).decode()
                if ev.finish == FINISH_ERROR:
                    raise Failed(ev.error)
        return ev


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: complete.py MODEL TEXT [TOKENS]")
    lib = load()
    try:
        with Model(lib, sys.argv[1]) as model:
            answer = model.complete(sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 32)
            while True:
                try:
                    print(next(answer), end="", flush=True)
                except StopIteration as end:
                    print("\n[%d tokens, then: %s]" % (end.value.completion_tokens, lib.cygnet_finish_name(end.value.finish).decode()), file=sys.stderr)
                    return 0
    except Failed as e:
        print("complete.py: %s" % e, file=sys.stderr)
        return e.exit_status


if __name__ == "__main__":
    sys.exit(main())
