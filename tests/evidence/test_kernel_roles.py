"""Roles of kernels by name: names as real traces print them, and names that mislead."""

from __future__ import annotations

import pytest

from helpers.evidence.profiles.kernel_roles import demangled, operator_role, role_of
from helpers.schema import ROLES

# Names seen in public traces or wheels (log-formats.md 6.4, marks T and S), by what they do.
SEEN = {
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, int)", "ncclSymkDevKernel_AllGather",
        "multimem_all_reduce_kernel<c10::BFloat16, 8>", "void deep_ep::internode_ll::dispatch<true, 7168>(void*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(RMSNorm)1>(Params)",
        "_all_gather_kernel_inner"],
    "moe": [
        "fused_moe_kernel", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x512_swiGlu_dynBatch_sm100f", "_topk_forward", "_sum_bitmatrix_rows",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_dynBatch_sm100f", "_finalize_matmul_scatter_bf16", "dsv3_router_gemm",
        "void moe::dev::routing::routingRenormalize::routingIndicesHistogramKernel<int>(Params)",
        "void moe::dev::finalize::finalizeKernel<bf16>(P)", "_combined_routing_compute", "_fwd_kernel_ep_scatter_1",
        "void marlin_moe_wna16::Marlin<__nv_bfloat16, 256>(int4 const*)", "void topkGatingSoftmax<float, 8>(float*)",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>(P)"],
    "attention": [
        "fmhaSm100aKernel_QkvBfloat16OBfloat16HQk64HV64PagedKvCausal", "_fwd_kernel", "_fwd_grouped_kernel_stage1",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0>(bf16 const*)",
        "void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, 128>(__hip_bfloat16*)", "kernel_unified_attention_3d",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwd>>>(P)",
        "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_9NormGemmQEEEvT_", "reduce_segments",
        "void (anonymous namespace)::store_kvcache<2048l, 4, false, long>((anonymous namespace)::StoreKVCacheParams)",
        "_fused_qk_rope_reshape_and_cache_kernel", "void vllm::reshape_and_cache_flash_kernel<bf16>(bf16 const*)"],
    "state": [
        "fused_recurrent_gated_delta_rule_fwd_kernel", "_causal_conv1d_update_kernel", "_chunk_scan_fwd_kernel",
        "lightning_attention_decode_kernel"],
    "dense_gemm": [
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(P)", "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u>(f*)",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>>>(P)",
        "_w8a8_block_fp8_matmul", "void marlin::Marlin<__nv_bfloat16, 256>(int4 const*)",
        "void gemv2T_kernel_val<int, __nv_bfloat16>(P)", "triton_tem_fused_addmm_0"],
    "norm_rope_quant": [
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassEEEvT_",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "_gemma_rmsnorm_kernel",
        "void GemmaRMSNormKernel<8>(P)", "void per_token_group_quant_8bit_kernel<bf16>(P)", "cvt_fp16_to_fp4",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1"],
    "sampling": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(float)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*)",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>(float*)"],
    "elementwise_copy_reduce": [
        "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::direct_copy_kernel_cuda>(int)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<long, at::native::MaxNanFunctor<long>>>(long)",
        "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_EXadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)", "compute_position_kernel",
        # Inductor lists operators: a mixture of experts is nearby, not in it.
        "triton_poi_fused_constant_pad_nd_moe_forward_0", "triton_poi_fused_all_reduce_silu_2"],
    "draft": ["_eagle_prepare_inputs_padded_kernel", "void TreeSpeculativeSamplingTargetOnly<1024u>(float*)",
              "generate_draft_decode_kv_indices"],
    "unclassified": ["my_kernel_7", "", "_Z3foov", "void property_kernel<int>(gamma*)", "gemma_kernel"],
}


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in SEEN.items() for name in names])
def test_role_of_a_seen_name(role, name):
    assert role in ROLES
    assert role_of(name) == role


@pytest.mark.parametrize(("name", "function"), [
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bEEvPT0_", "aiter::add_rmsnorm_quant_kernel"),
    ("_Z3foov", "foo"), ("_Znonsense", "_Znonsense"),
    ("void (anonymous namespace)::k<int>(int)", "k"), ("void ns::k(a<int>)", "ns::k"), ("plain", "plain"),
])
def test_the_function_of_a_name(name, function):
    assert demangled(name)[0] == function


def test_template_text_decides_only_where_the_function_says_nothing():
    """The template of a copy may name anything: the function comes first."""
    assert role_of("void at::native::elementwise_kernel<attention::moe::gemm>(int)") == "elementwise_copy_reduce"
    assert role_of("void f<cutlass::gemm::kernel::GemmUniversal<int>>(int)") == "dense_gemm"


def test_operators_have_roles_of_their_own():
    assert operator_role("vllm::rocm_unquantized_gemm") == "dense_gemm"
    assert operator_role("aiter::mha_batch_prefill") == "attention"
    assert operator_role("aten::view") == "unclassified"
