# cygnet — one Makefile for everything.
#
#   make                 release build: build/cygnet, build/libcygnet.a, build/libcygnet.so
#   make check           layers + format + unit tests under ASan and UBSan     (before each commit)
#   make test            every test, optimised build                          T=kv or T="files/gguf text" narrows
#   make simde           AVX-512 kernels under emulation
#   make tsan            server tests, and those of the engine that use threads, under ThreadSanitizer
#   make test-npu        the engine's tests on the emulated NPU, whose streams are late  PROFILE=A2-8.5 SEED=1; MODE=tsan: and looked at for races
#   make corpus          replay all fuzz corpora with the ordinary compiler
#   make fuzz F=gguf     libFuzzer on one target (needs clang)                SECONDS=60
#   make bench           kernel and end-to-end rates beside the machine's floors   MODEL=file.gguf
#   make bench-check     fast kernels against yardsticks, ratios only: is one lost?
#   make man             man/*.1 and docs/reference.md, as the program itself lists its commands, options, routes and metrics
#   make golden          regenerate the golden files (needs a Python environment, see tools/golden)
#   make install PREFIX=/usr/local    make uninstall takes it away again      DESTDIR=, LIBDIR=, UNITDIR= and others: packaging/install.mk
#   make deb             Debian packages in build/deb (docs/packaging.md)
#   make IMAGE=0 AUDIO=0 without the decoders of pictures and sound, and their libraries
#
# MODE=release|debug|asan|tsan|simde picks the build; objects of each live apart in build/MODE. BUILD=dir moves it all.
# Rooms stand in the order of who may use whom (tools/layers.sh is the exact rule); a test in tests/ROOM links that room and those before it.

MODE  ?= release
BUILD ?= build
CC    ?= cc
OBJ   := $(BUILD)/$(MODE)

ROOMS := base files text kv compute models engine server eval load

# warnings are errors with the compiler that this is developed with; a newer one's new warnings must not keep anybody from building
WERROR ?= $(if $(filter 12,$(shell $(CC) -dumpversion | cut -d. -f1)),-Werror)
WARN   := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wdate-time $(WERROR)
CFLAGS_release := -O2 -g
CFLAGS_debug   := -O0 -g -DCYGNET_DEBUG
CFLAGS_asan    := -O1 -g1 -DCYGNET_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
# AVX-512 kernels emulated by SIMDe, so that they are tested on machines that lack them
CFLAGS_simde   := -O1 -g1 -DCYGNET_DEBUG -DCYGNET_SIMDE -Wno-conversion -Wno-shadow -Wno-psabi
CFLAGS_tsan    := -O1 -g1 -DCYGNET_DEBUG -fsanitize=thread -fno-omit-frame-pointer
# x86-64 instruction sets are chosen at run time: only these files may use more than the baseline.
ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)
ifeq ($(ARCH),x86_64)
MARCH := -march=x86-64-v2
ISA_avx2   := -mavx2 -mfma -mf16c -mbmi2
ifeq ($(MODE),simde)
ISA_avxvnni := $(ISA_avx2)
ISA_avx512 := $(ISA_avx2)
ISA_avx512bf16 := $(ISA_avx2)
ISA_amx := $(ISA_avx2)
else
ISA_avxvnni := $(ISA_avx2) -mavxvnni
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -mbmi2
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_amx := $(ISA_avx512bf16) -mavx512vbmi -mavx512fp16 -mamx-tile -mamx-int8 -mamx-bf16
endif
endif

# -ffp-contract=off: a*b+c is fused only where a kernel says so; otherwise results would differ by compiler and inlining.
BASE_CFLAGS := $(MARCH) -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -Itests -ffp-contract=off -fno-math-errno -fvisibility=hidden -fPIC -pthread -MMD -MP
# objects do not tell the folder that they were built in: the same source gives the same bytes anywhere
BASE_CFLAGS += -ffile-prefix-map=$(CURDIR)=.
override CFLAGS = $(BASE_CFLAGS) $(BASE_CFLAGS_media) $(WARN) $(CFLAGS_$(MODE)) $(EXTRA_CFLAGS)
override LDFLAGS := -pthread $(filter -fsanitize%,$(CFLAGS_$(MODE))) $(EXTRA_LDFLAGS)

LIBS_base   := -lcrypto -lm
LIBS_files  := -ljansson
IMAGE ?= 1
AUDIO ?= 1
ifeq ($(IMAGE),1)
LIBS_files += -ljpeg -lpng -lwebpdemux -lwebp -lgif -lexif
else
BASE_CFLAGS_media += -DCYGNET_NO_IMAGE
endif
ifeq ($(AUDIO),1)
LIBS_files += -lsndfile -lvorbisfile -lmpg123 -lsoxr
else
BASE_CFLAGS_media += -DCYGNET_NO_AUDIO
endif
LIBS_text   := -lutf8proc
LIBS_server := -levent -levent_pthreads -lssl -lcurl
LIBS := $(LIBS_server) $(LIBS_text) $(LIBS_files) $(LIBS_base)

OTHER_ARCH := $(if $(filter x86_64,$(ARCH)),,%_avx2.c %_avxvnni.c %_avx512.c %_avx512bf16.c %_amx.c)
src_of  = $(filter-out $(OTHER_ARCH),$(sort $(wildcard src/$(1)/*.c) $(wildcard src/$(1)/*/*.c)))
obj_of  = $(patsubst src/%.c,$(OBJ)/src/%.o,$(call src_of,$(1)))
# emulation is about kernels: rooms that have none are the release build's
PLAIN  := $(if $(filter simde,$(MODE)),base files text kv)
lib_of  = $(if $(filter $(1),$(PLAIN)),$(BUILD)/release,$(OBJ))/lib/$(1).a
# rooms up to and including $(1), last first (link order)
upto    = $(if $(filter $(1),$(firstword $(2))),$(1),$(call upto,$(1),$(wordlist 2,99,$(2))) $(firstword $(2)))

.PHONY: all check test test-programs test-npu twins simde tsan corpus fuzz bench bench-check man golden clean format layers help
all: $(BUILD)/cygnet $(BUILD)/libcygnet.a $(BUILD)/libcygnet.so

# -O3 is for users; sanitizers and emulation would take the compiler minutes
KERN_O := $(if $(filter release,$(MODE)),-O3,-O1)
$(OBJ)/src/%_avx2.o:   ISA_CFLAGS := $(ISA_avx2) $(KERN_O)
$(OBJ)/src/%_avxvnni.o: ISA_CFLAGS := $(ISA_avxvnni) $(KERN_O)
$(OBJ)/src/%_avx512.o: ISA_CFLAGS := $(ISA_avx512) $(KERN_O)
$(OBJ)/src/%_avx512bf16.o: ISA_CFLAGS := $(ISA_avx512bf16) $(KERN_O)
$(OBJ)/src/%_amx.o: ISA_CFLAGS := $(ISA_amx) $(KERN_O)
$(OBJ)/src/%_ref.o:    ISA_CFLAGS := $(KERN_O)

# the compiler needs longer for a test than the test gains from it, unless it has arithmetic of its own
TEST_O := $(if $(filter asan tsan,$(MODE)),-O0,$(if $(filter debug,$(MODE)),,-O1 -g1))
$(foreach r,$(filter-out compute,$(ROOMS)),$(eval $(OBJ)/tests/$(r)/t_%.o: ISA_CFLAGS := $(TEST_O)))

# The emulated NPU's arithmetic is what its tests spend their time with. It is one thread's, on memory that nobody else reaches: a search for races finds
# nothing there and takes 20 times as long.
EMU_ARITHMETIC := $(addprefix $(OBJ)/tests/acl_emu/,op_%.o attn_%.o element.o)
$(EMU_ARITHMETIC): ISA_CFLAGS := $(if $(filter tsan,$(MODE)),-fno-sanitize=thread) $(if $(filter debug,$(MODE)),,-O2)

$(OBJ)/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  cc      $<"
	@$(CC) $(CFLAGS) $(ISA_CFLAGS) -c $< -o $@

# the assembler takes the page in (.incbin), which -MMD does not see
$(OBJ)/src/server/page.o: src/server/page.html

define room_rule
$(call lib_of,$(1)): $(call obj_of,$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	@$(AR) rcsD $$@ $(call obj_of,$(1))
endef
$(foreach r,$(filter-out $(PLAIN),$(ROOMS)),$(eval $(call room_rule,$(r))))
define plain_room_rule
$(call lib_of,$(1)): $(call src_of,$(1)) $(wildcard src/$(1)/*.h)
	@$$(MAKE) --no-print-directory MODE=release $$@
endef
$(foreach r,$(PLAIN),$(eval $(call plain_room_rule,$(r))))

ALL_LIB := $(foreach r,load eval server engine models compute kv text files base,$(call lib_of,$(r)))

$(BUILD)/cygnet: $(OBJ)/cygnet
	@cp $< $@
$(OBJ)/cygnet: $(patsubst %.c,$(OBJ)/%.o,$(sort $(wildcard src/*.c))) $(ALL_LIB)
	@echo "  link    $@"
	@$(CC) $(filter %.o,$^) $(LDFLAGS) -Wl,--start-group $(ALL_LIB) -Wl,--end-group $(LIBS) -o $@
# The library is everything but the server, the evaluations and the load generator; only the names of cygnet.h leave it. Its file carries the whole version, its name for
# the linker (SONAME) the first number. Its symbols carry the first two: a program that was built with 0.1 does not start with 0.2, whose structs may differ.
VERSION := $(shell sed -n 's/^\#define CYGNET_VERSION "\(.*\)"$$/\1/p' include/cygnet.h)
SONAME  := libcygnet.so.$(firstword $(subst ., ,$(VERSION)))
SOFILE  := libcygnet.so.$(VERSION)
LIB_OBJ := $(foreach r,$(filter-out server eval load,$(ROOMS)),$(call obj_of,$(r)))
LIB_LIBS := $(LIBS_text) $(LIBS_files) $(LIBS_base)
$(BUILD)/libcygnet.a: $(LIB_OBJ)
	@echo "  ar      $@"
	@rm -f $@; $(LD) -r $^ -o $(OBJ)/libcygnet.o && objcopy --localize-hidden $(OBJ)/libcygnet.o && $(AR) rcsD $@ $(OBJ)/libcygnet.o
$(OBJ)/libcygnet.map: include/cygnet.h tools/symbols.sh
	@mkdir -p $(@D)
	@tools/symbols.sh map <$< >$@.tmp && mv $@.tmp $@
$(BUILD)/libcygnet.so: $(OBJ)/libcygnet.map $(LIB_OBJ)
	@echo "  link    $@"
	@$(CC) -shared -Wl,-soname,$(SONAME) -Wl,-z,defs -Wl,--version-script=$< $(LIB_OBJ) $(LDFLAGS) $(LIB_LIBS) -o $(BUILD)/$(SOFILE)
	@ln -sf $(SOFILE) $(BUILD)/$(SONAME) && ln -sf $(SOFILE) $@

# --- tests: tests/ROOM/t_NAME.c -> build/MODE/tests/ROOM/t_NAME; helpers shared by all tests are tests/*.c -------------
TESTS    := $(sort $(wildcard tests/*/t_*.c))
TESTBINS := $(patsubst %.c,$(OBJ)/%,$(TESTS))
SELECTED := $(if $(T),$(foreach t,$(TESTBINS),$(if $(strip $(foreach p,$(T),$(findstring tests/$(p),$(subst /t_,/,$(t))))),$(t))),$(TESTBINS))
TESTLIB  := $(patsubst %.c,$(OBJ)/%.o,$(sort $(wildcard tests/*.c)))

# a hundred programs are linked three times: with the quicker linker where there is one
TEST_LD := $(if $(shell command -v ld.gold),-fuse-ld=gold)
define test_rule
$(OBJ)/tests/$(1)/t_%: $(OBJ)/tests/$(1)/t_%.o $(TESTLIB) $(foreach r,$(call upto,$(1),$(ROOMS)),$(call lib_of,$(r)))
	@echo "  link    $$@"
	@$(CC) $$< $(TESTLIB) $(LDFLAGS) $(TEST_LD) -Wl,--start-group $(foreach r,$(call upto,$(1),$(ROOMS)),$(call lib_of,$(r))) -Wl,--end-group $(LIBS) -lcmocka -lz -o $$@
endef
$(foreach r,$(ROOMS),$(eval $(call test_rule,$(r))))
.PRECIOUS: $(OBJ)/%.o $(TESTBINS) $(OBJ)/fuzz/replay_% $(OBJ)/bench/b_%

# The emulated NPU (tests/acl_emu): one core, and for each profile the libraries that dlopen finds there. Only tests that open it wait for it.
EMU_DIR  := $(OBJ)/tests/acl_emu
EMU_OBJ  := $(patsubst %.c,$(OBJ)/%.o,$(sort $(wildcard tests/acl_emu/*.c)))
EMU_LIBS := $(foreach p,A2-8.1 A2-8.5 A2-9.1 A3-9.1 310P-8.5,$(EMU_DIR)/$(p)/done)
$(EMU_DIR)/libacl_emu.so: $(EMU_OBJ)
	@echo "  link    $@"
	@$(CC) -shared -Wl,-soname,libacl_emu.so $^ $(LDFLAGS) -lm -o $@
define emu_rule
$(EMU_DIR)/$(1)/done: $(EMU_DIR)/libacl_emu.so tests/acl_emu/symbols.txt tests/acl_emu/thin.sh
	@tests/acl_emu/thin.sh $(EMU_DIR) $(1) $(2) $(3) $(EMU_DIR)/libacl_emu.so $(CC) && touch $$@
endef
$(eval $(call emu_rule,A2-8.1,0,801))
$(eval $(call emu_rule,A2-8.5,1,805))
$(eval $(call emu_rule,A2-9.1,2,901))
$(eval $(call emu_rule,A3-9.1,3,901))
$(eval $(call emu_rule,310P-8.5,4,805))
.PHONY: emu
emu: $(EMU_LIBS)
$(filter $(foreach r,$(ROOMS),$(OBJ)/tests/$(r)/t_acl% $(OBJ)/tests/$(r)/t_ascend% $(OBJ)/tests/$(r)/t_npu%),$(TESTBINS)): | $(EMU_LIBS)

# what a real NPU does where documents are silent (tools/ascend_first_day.sh)
PROBE_OBJ := $(patsubst %.c,$(OBJ)/%.o,$(sort $(wildcard tools/ascend_probe*.c)))
PROBE_LIB := $(foreach r,$(call upto,compute,$(ROOMS)),$(call lib_of,$(r)))
$(BUILD)/ascend_probe: $(PROBE_OBJ) $(PROBE_LIB)
	@echo "  link    $@"
	@$(CC) $(PROBE_OBJ) $(LDFLAGS) -Wl,--start-group $(PROBE_LIB) -Wl,--end-group $(LIB_LIBS) -o $@

test: test-programs
	@tools/run_tests.sh $(SELECTED)
test-programs: twins $(SELECTED)
twins:
	@python3 tools/golden/twin.py unpack
check: layers format-check
	@$(MAKE) --no-print-directory MODE=asan test
# what has kernels; the NPU's tests have none
SIMDE_TESTS := $(filter-out compute/ascend% compute/acl_% models/npu_%,$(patsubst tests/%,%,$(subst /t_,/,$(patsubst %.c,%,$(filter tests/compute/% tests/models/%,$(TESTS))))))
simde:
	@$(MAKE) --no-print-directory MODE=simde test T="$(SIMDE_TESTS)"
tsan:
	@$(MAKE) --no-print-directory MODE=tsan test T="engine/engine engine/graph engine/grammar server"
	@$(MAKE) --no-print-directory MODE=tsan test-npu NPU_SUITE="engine/draft" NAME_FILTER="same_answers*"
# Tests of engines that are written for any device, with one that does nothing until somebody waits, then what a seed says, and sleeps now and then.
# What they assume of the CPU alone is skipped, and said; the scheduler's own tests (sched, batch) have no device.
NPU_SUITE := engine/engine engine/reuse engine/window engine/grammar engine/thoughts engine/draft engine/media engine/cygnet_media engine/roads4
test-npu: emu
	@CYGNET_TEST_BACKEND=ascend CYGNET_TEST_PROFILE=$(or $(PROFILE),A2-8.5) ACL_EMU_SEED=$(or $(SEED),1) ACL_EMU_LAZY=1 ACL_EMU_DELAY_US=500 ACL_EMU_DELAY_ONE_IN=200 \
	  $(MAKE) --no-print-directory test T="$(NPU_SUITE)"

# --- fuzz targets: fuzz/f_NAME.c defines LLVMFuzzerTestOneInput; fuzz/corpus/NAME/* are replayed by an ordinary build ----
FUZZERS := $(patsubst fuzz/f_%.c,%,$(sort $(wildcard fuzz/f_*.c)))
FUZZ_LIB := $(foreach r,text files base,$(call lib_of,$(r)))
$(OBJ)/fuzz/replay_%: $(OBJ)/fuzz/f_%.o $(OBJ)/fuzz/replay.o $(FUZZ_LIB)
	@$(CC) $(filter %.o,$^) $(LDFLAGS) -Wl,--start-group $(FUZZ_LIB) -Wl,--end-group $(LIBS) -o $@
corpus: $(patsubst %,$(OBJ)/fuzz/replay_%,$(FUZZERS))
	@for f in $(FUZZERS); do $(OBJ)/fuzz/replay_$$f fuzz/corpus/$$f || exit 1; done
fuzz:
	@mkdir -p $(BUILD)/fuzz/$(F)
	clang -std=c11 -D_GNU_SOURCE -DCYGNET_DEBUG -Isrc -Iinclude -g -O1 -march=x86-64-v2 -fsanitize=fuzzer,address,undefined fuzz/f_$(F).c \
	  $(foreach r,base files text,$(call src_of,$(r))) $(LIBS_text) $(LIBS_files) $(LIBS_base) -pthread -o $(BUILD)/fuzz/f_$(F)
	$(BUILD)/fuzz/f_$(F) -max_total_time=$(or $(SECONDS),60) $(BUILD)/fuzz/$(F) fuzz/corpus/$(F)

# --- the rest ---------------------------------------------------------------------------------------------------------
layers:
	@tools/layers.sh
FORMATTED := $(wildcard include/*.h src/*.[ch] src/*/*.[ch] tests/*.[ch] tests/*/*.[ch] fuzz/*.c bench/*.c tools/*.[ch] examples/*.c)
format:
	clang-format -i $(FORMATTED)
format-check:
	@v=$$(clang-format --version 2>/dev/null | grep -o 'version [0-9]*' | cut -d' ' -f2); \
	if [ "$$v" = 14 ]; then clang-format --dry-run -Werror $(FORMATTED) && echo "format: ok"; \
	else echo "format: not checked, clang-format 14 is not here (found: $${v:-none})"; fi
MODEL ?= build/models/gemma-3-270m-q4_k_m.gguf
BENCHES := $(patsubst bench/%.c,$(OBJ)/bench/%,$(sort $(wildcard bench/b_*.c)))
$(OBJ)/bench/b_%: $(OBJ)/bench/b_%.o $(foreach r,engine models compute kv text files base,$(call lib_of,$(r)))
	@echo "  link    $@"
	@$(CC) $(filter %.o,$^) $(LDFLAGS) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIB_LIBS) -o $@
bench-check: $(OBJ)/bench/b_check
	@$<
bench: $(BENCHES) $(BUILD)/cygnet
	@for b in $(BENCHES); do $$b || exit 1; done
	@if [ -f $(MODEL) ]; then $(BUILD)/cygnet bench -m $(MODEL) --depth 0,4096 --batch 1,4,16; \
	else echo "no $(MODEL): ./demo.sh fetches it, or give MODEL=file.gguf"; fi
# in the tree, so that they can be read and installed without a build; tests/docs.py compares
man: $(BUILD)/cygnet
	@mkdir -p man
	@for c in $$($< help | sed -n 's/^  \([a-z]*\)  .*/\1/p' | grep -v '^help$$'); do $< help --man $$c >man/cygnet-$$c.1 || exit 1; done
	@$< help --man >man/cygnet.1 && $< help --markdown >docs/reference.md
golden:
	tools/golden/make.sh
include packaging/install.mk
clean:
	rm -rf $(BUILD)
help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
