# First frame of the build; every source below the floors is picked up by its folder.
BUILD ?= build
CC ?= gcc
MARCH ?= native
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Werror
CFLAGS ?= -O3 -g
ALL_CFLAGS := -std=c11 -D_GNU_SOURCE -I. -fPIC -fopenmp -march=$(MARCH) $(WARN) $(CFLAGS)
LIBS := -lopenblas -lcjson -lm -ldl

LIB_SRC := $(wildcard common/*.c common/*/*.c cpu/*.c cpu/*/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
TOOL_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tools/*.c))
SUPPORT_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/support/*.c))
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))

.PHONY: all lib tool tests
all: lib tool tests
lib: $(BUILD)/libdualkv.so
tool: $(BUILD)/dualkv
tests: $(TESTS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/libdualkv.so: $(LIB_OBJ)
	$(CC) -shared -fopenmp -o $@ $^ $(LIBS)
$(BUILD)/dualkv: $(TOOL_OBJ) $(BUILD)/libdualkv.so
	$(CC) -fopenmp -o $@ $(TOOL_OBJ) -L$(BUILD) -ldualkv $(LIBS) -Wl,-rpath,'$$ORIGIN'
$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(SUPPORT_OBJ) $(BUILD)/libdualkv.so
	$(CC) -fopenmp -o $@ $< $(SUPPORT_OBJ) -L$(BUILD) -ldualkv $(LIBS) -lcriterion -Wl,-rpath,'$$ORIGIN/..'

-include $(wildcard $(BUILD)/*/*.d $(BUILD)/*/*/*.d)
