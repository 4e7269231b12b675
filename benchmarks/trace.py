import sys, ctypes
from dataclasses import replace
from pathlib import Path
sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parents[1])]
import torch, numpy as np
from octavo.kernels import variants
old = variants.Variant.defines
variants.Variant.defines = lambda self: old(self) | {"TRACE": 1}
from benchmarks.setup import Load, plans, random_pool, compile_all
from octavo.kernels import decode as dm
from octavo.kernels.variants import choose
from cuda.bindings import driver
cases=[a.split(",") for a in sys.argv[1:]]
for k,v,q_,w,s,length in cases:
    q_,w,s,length=map(int,(q_,w,s,length))
    load = Load("x", 8, 4, 128, length, queries=q_)
    pool = random_pool(k, v, load, 4096); every = plans(load, 4096)
    variant = replace(choose(k, v, 128, 4*q_, centred=True), warps=w, stages=s)
    q = torch.randn(q_, 32, 128, device="cuda", dtype=torch.bfloat16)
    g = torch.cuda.CUDAGraph()
    for p in every[:2]: dm.decode(q, pool, p, scale=.1, variant=variant)
    torch.cuda.synchronize()
    with torch.cuda.graph(g):
        for p in (every*4)[:4]: dm.decode(q, pool, p, scale=.1, variant=variant)
    for _ in range(3): g.replay()
    torch.cuda.synchronize()
    walk = dm._kernels(variant)[0]
    err, ptr, size = driver.cuModuleGetGlobal(walk.module, b"trace_at")
    host = np.zeros(132*16*8, np.uint64)
    driver.cuMemcpyDtoH(host.ctypes.data, ptr, host.nbytes)
    t = host.reshape(132,16,8)[:, :w].astype(np.int64)
    z = t[..., 0].min()
    print(k, v, q_, w, s, length)
    for i,name in enumerate(("entry","query staged","loop","first page","loop end","stored")):
        x = (t[..., i]-z)/1e3
        print(f"  {name:13} min {x.min():7.2f} p10 {np.percentile(x,10):7.2f} median {np.median(x):7.2f} p90 {np.percentile(x,90):7.2f} max {x.max():7.2f}")
    e=(t[...,4].max(1)-z)/1e3
    print("  CTA ends", np.round(np.sort(e)[[0,13,66,118,125,131]],1), "slowest", np.argsort(e)[-8:])
