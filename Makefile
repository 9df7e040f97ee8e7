# The build of the DualKV reference: one file, no generated build, every source found by its folder.
#
#   make            explains itself            make BUILD=dir     builds elsewhere
#   make all        builds what this machine   make MARCH=x86-64-v3   for other processors than this one
#                   can build                  make CC=clang      another compiler
#                                              make JOBS=1        one compiler at a time
#                                              make V=1           whole commands instead of a word and a file
#
# Objects depend on a stamp that holds the flags they were compiled with, so a changed flag or compiler, or another
# processor behind MARCH=native, rebuilds what it must and nothing else.

BUILD ?= build
MARCH ?= native
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CFLAGS ?= -O3 -g
WERROR ?= # -Werror in CI: a newer compiler's new warning should not keep anybody from building
FUZZ_SECONDS ?= 10
ifeq ($(origin CC),default)
CC := gcc
endif

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla $(WERROR)
# -fno-math-errno changes no result: sqrtf may be one instruction.  A loop that clang cannot vectorise is slow, not wrong.
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -I. -fPIC -fopenmp -fno-math-errno -march=$(MARCH) $(WARN) \
  $(if $(findstring clang,$(CC)),-Wno-pass-failed) $(CFLAGS)
# OpenBLAS is not linked: cpu/blas.c opens it at run time, after it has chosen kernels that fit the CPU.
LIBS := -lcjson -lm -ldl -pthread

# --- what there is to build: new folders are picked up by themselves ------------------------------------------------
LIB_SRC := $(wildcard common/*.c common/*/*.c cpu/*.c cpu/*/*.c)
TOOL_SRC := $(wildcard tools/*.c)
SUPPORT_SRC := $(wildcard tests/support/*.c)
TEST_SRC := $(wildcard tests/test_*.c)
HELPER_SRC := $(wildcard tests/tool_*.c)
FUZZ_SRC := $(wildcard tests/fuzz_*.c tests/fuzz/*.c)
GPU_SRC := $(sort $(wildcard gpu/*.cu gpu/*/*.cu gpu/*/*/*.cu))

objects = $(patsubst %.c,$(BUILD)/%.o,$(1))
LIB_OBJ := $(call objects,$(LIB_SRC))
TOOL_OBJ := $(call objects,$(TOOL_SRC))
SUPPORT_OBJ := $(call objects,$(SUPPORT_SRC))
TESTS := $(patsubst %.c,$(BUILD)/%,$(TEST_SRC))
HELPERS := $(patsubst %.c,$(BUILD)/%,$(HELPER_SRC))
FUZZERS := $(patsubst %.c,$(BUILD)/%,$(FUZZ_SRC))
GPU_OBJ := $(patsubst %.cu,$(BUILD)/%.cu.o,$(GPU_SRC))
GPU_TESTS := $(patsubst %.cu,$(BUILD)/%,$(wildcard tests/gpu/*.cu))
GPU_HOST_TESTS := $(addprefix $(BUILD)/tests/gpu/,ladder_plan bwd_plan work_lists refusals) # of those, what needs no GPU
C_OBJ := $(LIB_OBJ) $(TOOL_OBJ) $(SUPPORT_OBJ) $(TESTS:=.o) $(HELPERS:=.o) $(FUZZERS:=.o)

# --- the GPU half: only where nvcc is, only run where a device is ---------------------------------------------------
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_LIB = $(firstword $(wildcard $(abspath $(dir $(NVCC))..)/lib64 $(abspath $(dir $(NVCC))..)/targets/x86_64-linux/lib))
NVWERROR ?= -Werror all-warnings
GPU_LDFLAGS ?= -Xlinker -z,defs
NVFLAGS = -std=c++17 -O3 -lineinfo -I. -Xcompiler -fPIC,-Wall,-Wextra $(NVWERROR)
comma := ,
# Files whose path says "hopper" use wgmma and TMA, which exist for sm_90a alone; the ladder below runs on anything from sm_80: cards
# newer than sm_90 find PTX, of which their driver makes code.
gencode = $(if $(findstring hopper,$(1)),-gencode=arch=compute_90a$(comma)code=sm_90a,\
  -gencode=arch=compute_80$(comma)code=sm_80 -gencode=arch=compute_90$(comma)code=[sm_90$(comma)compute_90])
# Tensor-core kernels may not spill a register; the simple rungs may (tools/check_ptxas.sh reads every log again).
tensor = $(or $(findstring hopper,$(1)),$(findstring mma,$(1)),$(findstring pipeline,$(1)))
ptxas = -Xptxas -v$(if $(call tensor,$(1)),$(comma)--warn-on-spills)
HAS_GPU = $(shell nvidia-smi -L 2>/dev/null | head -n 1)
GPU_IF_PRESENT = $(if $(and $(NVCC),$(GPU_SRC),$(HAS_GPU)),gpu)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(JOBS)
endif
AGAIN = +@$(MAKE) --no-print-directory

.PHONY: help all setup demo test test-gpu test-gpu-host gpu-pack sass-check lib tool tests gpu sanitize fuzz fuzzers exercise \
        docs results tables tables-check figures figures-check format format-check ptxas-check clean FORCE

#: help          this list
help:
	@echo "DualKV reference: attention that computes a shared prompt once.  Targets:"; echo
	@sed -n 's/^#: /  /p' $(firstword $(MAKEFILE_LIST)); echo
	@echo "Variables: BUILD=$(BUILD) CC=$(CC) MARCH=$(MARCH) JOBS=$(JOBS); V=1 shows whole commands"
	@echo "nvcc: $(or $(NVCC),none, so the GPU backend is left out)"

#: demo          installs what is missing, builds, shows the idea on this machine (under a minute)
demo:
	@tools/setup.sh build
	$(AGAIN) tool $(GPU_IF_PRESENT)
	@$(BUILD)/dualkv demo

#: test          installs what is missing, builds, runs every test that needs no GPU
test:
	@tools/setup.sh build test
	$(AGAIN) tool tests
	@tests/run.sh $(BUILD)

#: test-gpu      everything that needs the card: laws, cases, sanitizer, benchmark (results go to docs/results)
test-gpu: lib tool gpu $(GPU_TESTS)
	@tests/run_gpu.sh --build $(BUILD)
#: test-gpu-host what can be tested of the GPU backend without a GPU: plans, lists of work, refusals (needs nvcc)
test-gpu-host: $(if $(NVCC),$(GPU_HOST_TESTS),no-nvcc)
	@tests/gpu/run_host.sh $(GPU_HOST_TESTS)
#: gpu-pack      gathers build/gpu_carry for a GPU machine that has no compiler; run tests/run_gpu.sh there
gpu-pack: lib tool gpu $(GPU_TESTS)
	@tests/run_gpu.sh --pack $(BUILD)

#: all           builds everything this machine can build: library, program, tests, and the GPU backend where nvcc is
all: lib tool tests $(if $(and $(NVCC),$(GPU_SRC)),gpu)
	@echo "built $(BUILD)/dualkv, $(words $(TESTS)) test programs$(if $(NVCC),, (no nvcc here: the GPU backend is left out))"

#: setup         installs the Debian or Ubuntu packages of tools/packages.txt that are missing
setup:
	@tools/setup.sh build test ci

#: lib           build/libdualkv.so: the core and the CPU backend
lib: $(BUILD)/libdualkv.so
#: tool          build/dualkv: the program
tool: $(BUILD)/dualkv
#: tests         build/tests/test_*: the Criterion programs, and helpers of the shell checks
tests: $(TESTS) $(HELPERS)

#: gpu           build/libdualkv_gpu.so: the CUDA backend (needs nvcc, not a GPU), and reads what ptxas said
gpu: $(if $(NVCC),ptxas-check,no-nvcc)
.PHONY: no-nvcc
no-nvcc:
	@echo "make gpu needs nvcc, which is neither on PATH nor in /usr/local/cuda/bin; set NVCC=/path/to/nvcc" >&2; exit 2
ptxas-check: $(BUILD)/libdualkv_gpu.so
	@tools/check_ptxas.sh $(GPU_OBJ:.o=.ptxas)
#: sass-check    reads in the machine code that each tensor-core kernel consists of the instructions its name promises
sass-check: gpu
	@tools/check_sass.sh --fetch $(BUILD)/disassembler $(GPU_OBJ)

#: sanitize      the tests again under the address and undefined-behaviour sanitizers
sanitize:
	@tools/setup.sh build test
	$(AGAIN) BUILD=$(BUILD)/sanitize CFLAGS="$(SAN_CFLAGS)" tool tests
	@tests/run.sh $(BUILD)/sanitize
SAN_CFLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all

#: fuzz          libFuzzer on the file reader and the layout constructor, FUZZ_SECONDS=10 each (needs clang)
fuzz:
	@tools/setup.sh build fuzz
	$(AGAIN) BUILD=$(BUILD)/fuzz CC=clang CFLAGS="$(FUZZ_CFLAGS)" fuzzers
	@tests/run_fuzz.sh $(FUZZ_SECONDS) $(patsubst %.c,$(BUILD)/fuzz/%,$(FUZZ_SRC))
FUZZ_CFLAGS := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
fuzzers: $(FUZZERS)

#: exercise      judges your answers to the exercises of one chapter: make exercise CH=04
exercise:
	$(if $(EXERCISE),,$(error make exercise needs CH=NN, the number of a chapter: $(CHAPTERS)))
	@tools/setup.sh build
	$(AGAIN) tool
	@tests/run_exercises.sh $(BUILD) CH=$(CH)
EXERCISE = $(wildcard tutorials/exercises/ch$(CH)_*.c tutorials/exercises/ch0$(CH)_*.c)
CHAPTERS = $(sort $(foreach f,$(wildcard tutorials/exercises/ch*.c),$(patsubst ch%,%,$(firstword $(subst _, ,$(notdir $(f)))))))

.PHONY: notebooks notebooks-update
#: notebooks     runs the labs of notebooks/ headless: solved whole, students' up to their first hole, wrong answers caught
notebooks:
	@tools/setup.sh build notebooks
	$(AGAIN) lib
	@tests/run_notebooks.sh $(BUILD) $(LAB)
#: notebooks-update  makes them anew from notebooks/labs, stores what the solved ones print and draw; LAB="08 09" only these
notebooks-update:
	@tools/setup.sh build notebooks
	$(AGAIN) lib
	@tests/run_notebooks.sh $(BUILD) --update $(LAB)

#: docs          the Doxygen pages in build/docs/html; an undocumented parameter is an error
docs:
	@tools/setup.sh docs
	@mkdir -p $(BUILD)/docs
	@rm -rf $(BUILD)/docs/html
	@(cat docs/Doxyfile; echo "OUTPUT_DIRECTORY = $(BUILD)/docs") | doxygen -
	@tools/docs_pages.py finish $(BUILD)/docs/html
	@echo "docs: $(BUILD)/docs/html/index.html"

#: figures       draws docs/figures again from the rules and from docs/results
figures: $(BUILD)/dualkv
	@tools/make_figures.py --program $(BUILD)/dualkv
#: figures-check says whether they are current, agree with the program, and are shown with a text
figures-check: $(BUILD)/dualkv
	@tools/make_figures.py --check --program $(BUILD)/dualkv

#: results       times the CPU backend on a quiet machine (minutes) and rewrites docs/results, tables and figures
results:
	$(AGAIN) tool
	@tests/bench_cpu.sh $(BUILD)
	$(AGAIN) tables figures
#: tables        rewrites the generated tables of README and docs from docs/results/*.json and common/kernels.def
tables: $(BUILD)/dualkv
	@tools/make_tables.py --program $(BUILD)/dualkv
	@tools/training_tables.py
#: tables-check  says whether they are current
tables-check: $(BUILD)/dualkv
	@tools/make_tables.py --check --program $(BUILD)/dualkv
	@tools/training_tables.py --check

FORMATTED = $(wildcard common/*.[ch] common/*/*.[ch] cpu/*.[ch] cpu/*/*.[ch] tools/*.[ch] tests/*.[ch] tests/*/*.[ch])
#: format        clang-format on every C file
format:
	@clang-format -i $(FORMATTED)
#: format-check  says which C files clang-format would change
format-check:
	@clang-format --dry-run -Werror $(FORMATTED) && echo "format: $(words $(FORMATTED)) files clean"

#: clean         removes build/
clean:
	rm -rf $(BUILD)

# --- rules ----------------------------------------------------------------------------------------------------------
# A stamp is rewritten only when its text changes; the compiler's own view of MARCH is part of it.
stamp = @mkdir -p $(@D); printf '%s\n' $(1) | cmp -s - $@ || printf '%s\n' $(1) >$@
$(BUILD)/.flags-c: FORCE
	$(call stamp,'$(CC) $(ALL_CFLAGS)' "`$(CC) -march=$(MARCH) -dM -E -x c /dev/null | cksum`")
$(BUILD)/.flags-gpu: FORCE
	$(call stamp,'$(NVCC) $(NVFLAGS) $(call gencode,ladder) $(call gencode,hopper)')
# The commit is known to one object only, so that a new commit recompiles one file.
CODE_CHANGED = $(shell git status --porcelain -- Makefile common cpu gpu tools 2>/dev/null | head -n 1)
COMMIT = $(or $(DKV_COMMIT),$(shell git rev-parse --short=10 HEAD 2>/dev/null)$(if $(CODE_CHANGED),-dirty),unknown)
$(BUILD)/.commit: FORCE
	$(call stamp,'$(COMMIT)')
$(BUILD)/tools/version.o: $(BUILD)/.commit
$(BUILD)/tools/version.o: CPPFLAGS += -DDKV_COMMIT='"$(shell cat $(BUILD)/.commit)"'

Q = $(if $(V),,@)
SAY = @$(if $(V),:,echo)
$(C_OBJ): $(BUILD)/%.o: %.c $(BUILD)/.flags-c
	@mkdir -p $(@D)
	$(SAY) "cc   $<"
	$(Q)$(CC) $(ALL_CFLAGS) $(CPPFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/libdualkv.so: $(LIB_OBJ)
	$(SAY) "link $@"
	$(Q)$(CC) $(CFLAGS) -shared -fopenmp -Wl,-soname,libdualkv.so -o $@ $^ $(LIBS)
$(BUILD)/dualkv: $(TOOL_OBJ) $(BUILD)/libdualkv.so
	$(SAY) "link $@"
	$(Q)$(CC) $(CFLAGS) -fopenmp -o $@ $(TOOL_OBJ) -L$(BUILD) -ldualkv $(LIBS) -Wl,-rpath,'$$ORIGIN'
$(TESTS): $(BUILD)/tests/%: $(BUILD)/tests/%.o $(SUPPORT_OBJ) $(BUILD)/libdualkv.so
	$(SAY) "link $@"
	$(Q)$(CC) $(CFLAGS) -fopenmp -o $@ $< $(SUPPORT_OBJ) -L$(BUILD) -ldualkv $(LIBS) -lcriterion -Wl,-rpath,'$$ORIGIN/..'
$(HELPERS): $(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/libdualkv.so
	$(SAY) "link $@"
	$(Q)$(CC) $(CFLAGS) -fopenmp -o $@ $(filter %.o,$^) -L$(BUILD) -ldualkv $(LIBS) -Wl,-rpath,'$$ORIGIN/..'
$(BUILD)/tests/tool_assumptions: $(call objects,tests/support/assumptions.c tests/support/decoder.c)
$(FUZZERS): $(BUILD)/tests/%: $(BUILD)/tests/%.o $(LIB_OBJ)
	$(SAY) "link $@"
	$(Q)$(CC) $(CFLAGS) -fsanitize=fuzzer -fopenmp -o $@ $^ $(LIBS)

$(GPU_OBJ): $(BUILD)/%.cu.o: %.cu $(BUILD)/.flags-gpu
	@mkdir -p $(@D)
	@echo "nvcc $<"
	@$(NVCC) $(NVFLAGS) $(strip $(call gencode,$<)) $(call ptxas,$<) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ \
	  >$(@:.o=.ptxas) 2>&1 || { cat $(@:.o=.ptxas) >&2; exit 1; }
$(BUILD)/libdualkv_gpu.so: $(GPU_OBJ) $(BUILD)/libdualkv.so
	$(NVCC) -shared -o $@ $(GPU_OBJ) -L$(BUILD) -ldualkv -lcublas $(GPU_LDFLAGS) \
	  -Xlinker -rpath,'$$ORIGIN',-rpath,$(CUDA_LIB)
$(GPU_TESTS): $(BUILD)/tests/gpu/%: tests/gpu/%.cu $(BUILD)/libdualkv_gpu.so
	@mkdir -p $(@D)
	@echo "nvcc $<"
	@$(NVCC) $(NVFLAGS) -gencode=arch=compute_90a$(comma)code=sm_90a \
	  $(if $(filter %ladder_driver %fuzz_driver,$@),$(call gencode,ladder)) -MMD -MP -MF $@.d $< -o $@ \
	  -L$(BUILD) -ldualkv_gpu -ldualkv -lcublas -Xlinker -rpath$(comma)'$$ORIGIN/../..',-rpath$(comma)'$$ORIGIN'

-include $(C_OBJ:.o=.d) $(GPU_OBJ:.o=.d) $(GPU_TESTS:=.d)
