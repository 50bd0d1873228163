/* Starts a program on Arm's boards MPS2 with a Cortex-M4 or a Cortex-M7: vectors, floating point, memory, then main.
 * Files, and the end of the program, are semihosting's (rdimon.specs). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern uint32_t stack_top[], data_source[], data_start[], data_end[], bss_start[], bss_end[];
extern int main(void);
extern void initialise_monitor_handles(void);

__attribute__((noreturn)) void start(void);
__attribute__((noreturn)) void stopped(void);

void start(void) {
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* CPACR: before the first instruction on floats */
    __asm__ volatile("dsb\n isb");
    memcpy(data_start, data_source, (size_t)((char *)data_end - (char *)data_start));
    memset(bss_start, 0, (size_t)((char *)bss_end - (char *)bss_start));
    initialise_monitor_handles();
    exit(main());
}

void stopped(void) { /* a fault: without this the board would wait for ever */
    exit(4);
}

/* Newlib asks for them where -nostartfiles leaves them out. */
void _init(void);
void _init(void) {}
void _fini(void);
void _fini(void) {}

__attribute__((section(".vectors"), used)) static const uintptr_t vectors[16] = {
    (uintptr_t)stack_top,
    (uintptr_t)start,
    (uintptr_t)stopped,
    (uintptr_t)stopped,
    (uintptr_t)stopped,
    (uintptr_t)stopped,
    (uintptr_t)stopped,
};
