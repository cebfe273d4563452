#include "body.h"
#include <unistd.h>

API int stub_result = 0;
API int stub_wait_us = 0;
API float stub_ms = 0;

__attribute__((noinline)) int stub_work(void) {
    __asm__ volatile("" ::: "memory");
    return stub_result;
}

__attribute__((noinline)) int stub_wait(void) {
    if (stub_wait_us)
        usleep(stub_wait_us);
    return stub_result;
}

__attribute__((noinline)) int stub_hand_on(int (*driver)(void)) {
    if (driver)
        driver();
    return stub_work();
}
